"""Report of a program that trained: pictures are true to their figures, differences are named."""

import random
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import svg
from moefabric.report.page import page
from moefabric.report.pictures import DRAWINGS, picture
from moefabric.report.remarks import agreement, remarks
from moefabric.report.run_tables import changes_a_layer
from moefabric.results.model import RunResult
from tests.support.report_sample import fabrics_of, sample
from tests.unit.report.test_charts import boxes, marked, read, title

LAYERS, RANKS, EXPERTS = 3, 4, 8
ITERATION_S = {"eps": 0.14, "mixnet": 0.19, "mixnet-spill": 0.15, "static": 0.22}
CIRCUITS = (["s0/o0~s1/o0", "s2/o0~s3/o0"], ["s0/o0~s3/o0", "s2/o0~s3/o1"])


def training_sample(iterations: int = 6) -> dict[str, Any]:
    """Return a run whose fabrics train alike, at different speeds."""
    run = sample()
    losses = [5.5 / (number + 1) + 2 for number in range(iterations)]
    for result in run["results"]:
        took_s = ITERATION_S[result["fabric"]]
        result["iterations"] = [
            {"iteration": n, "measured_s": took_s, "exposed_comm_s": took_s / 4}
            for n in range(iterations)
        ]
        result["training"] = {
            "program": "train.py",
            "byte_scale": 640.0,
            "losses": [
                {"iteration": n, "model_s": took_s * (n + 1), "loss": loss, "text": repr(loss)}
                for n, loss in enumerate(losses)
            ],
            "tokens": tokens(iterations),
            "computation": {"count": 96, "late": 2, "worst_rank": 3},
        }
        if result["reconfigurations"]:
            result["reconfigurations"] = [
                reconfiguration(n, layer) for n in range(iterations) for layer in range(LAYERS)
            ]
    return run


def tokens(iterations: int) -> list[list[list[list[int]]]]:
    """Return tokens by iteration, layer, rank and expert; expert 5 of layer 1 is the busiest."""
    random_numbers = random.Random("tokens")
    return [
        [
            [
                [
                    random_numbers.randint(40, 80) * (3 if (layer, expert) == (1, 5) else 1)
                    for expert in range(EXPERTS)
                ]
                for _ in range(RANKS)
            ]
            for layer in range(LAYERS)
        ]
        for _ in range(iterations)
    ]


def reconfiguration(iteration: int, layer: int) -> dict[str, Any]:
    """Return a request that moves both circuits for layer 1, and back for layer 2."""
    before, after = CIRCUITS[layer == 2], CIRCUITS[layer == 1]
    return {
        "region": "r0",
        "iteration": iteration,
        "layer": layer,
        "pass": "forward",
        "circuits_before": before,
        "circuits_after": after,
        "settle_s": 0.025,
        "total_s": 0.03,
    }


@pytest.fixture
def run() -> dict[str, Any]:
    return training_sample()


def draw(kind: str, run: dict[str, Any]) -> ET.Element:
    return read(DRAWINGS[kind](fabrics_of(run)))


def legend(drawn: ET.Element) -> list[tuple[str, float]]:
    """Return the texts of a legend's entries with their places from left to right."""
    texts = [e for e in drawn.iter() if e.get("class") == "small" and ":" in (e.text or "")]
    return [(e.text or "", float(e.get("x") or 0)) for e in texts]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]


def test_losses_of_fabrics_end_at_equal_heights_after_their_times(run: dict[str, Any]) -> None:
    drawn = draw("loss", run)
    lines = [e for e in drawn.iter() if (e.get("class") or "").startswith("curve")]
    ends = [points(line.get("d") or "")[-1] for line in lines]
    assert len({y for _, y in ends}) == 1
    starts = [points(line.get("d") or "")[0] for line in lines]
    # An iteration's width is proportional to its duration: five of them lie between the points.
    widths = [(end[0] - start[0]) / 5 for start, end in zip(starts, ends, strict=True)]
    per_second = widths[0] / ITERATION_S["eps"]
    assert widths == [pytest.approx(s * per_second, abs=0.01) for s in ITERATION_S.values()]
    names = [entry.partition(":")[0] for entry, _ in legend(drawn)]
    assert sorted(names) == sorted(ITERATION_S)


def test_entries_of_legends_are_apart_and_name_the_colours_of_their_curves(
    run: dict[str, Any],
) -> None:
    for drawn in (draw(kind, run) for kind in ("loss", "exposed")):
        entries = legend(drawn)
        assert len(entries) == 4
        for (name, left), (_, right) in pairwise(entries):
            assert right - left >= svg.text_width(name, 12) + 14
        swatches = [e.get("class") for e in drawn.iter() if e.tag.endswith("rect")]
        curves = [(e.get("class") or "").split() for e in drawn.iter() if e.tag.endswith("path")]
        assert swatches == [f"t{classes[1][1:]}" for classes in curves]


def test_cells_are_loads_of_experts(run: dict[str, Any]) -> None:
    cells = marked(draw("expert_loads", run), "cell")
    counts = np.array(tokens(6)).sum(axis=2)
    loads = counts / counts.mean(axis=-1, keepdims=True)
    assert len(cells) == loads.size
    hottest = max(cells, key=lambda cell: float(cell.get("fill-opacity") or 0))
    iteration, _, expert = np.unravel_index(int(loads.argmax()), loads.shape)
    assert title(hottest) == f"iteration {iteration}, expert {expert}: {loads.max():.2f} x"
    assert expert == 5


def test_long_jobs_have_means_of_several_iterations(run: dict[str, Any]) -> None:
    run["results"][0]["training"]["tokens"] = tokens(400)
    titles = [title(cell) for cell in marked(draw("expert_loads", run), "cell")]
    assert len(titles) == 80 * 3 * EXPERTS
    assert titles[-1].startswith("iterations 395 to 399, expert 7: ")


def test_light_is_drawn_for_fabrics_whose_circuits_move(run: dict[str, Any]) -> None:
    drawn = draw("light", run)
    names = [e.text for e in drawn.iter() if "strong" in (e.get("class") or "")]
    assert names == ["mixnet", "mixnet-spill"]
    lit = [title(cell) for cell in marked(drawn, "lit")]
    # Layers 0 and 2 light s0 and s1, layer 1 lights s0 and s3.
    assert lit[:7] == [f"s0 - s1, iteration {n}: 0.67 circuits" for n in range(6)] + [
        "s0 - s3, iteration 0: 0.33 circuits"
    ]
    moved = {title(bar).partition(": ")[2] for bar in marked(drawn, "moved")}
    assert moved == {"1.3 circuits moved for a request"}
    assert [changes_a_layer(f) for f in fabrics_of(run)] == [None, 2 / 3, 2 / 3, None]
    assert "12 of 18 requests moved circuits, 2.0 each" in "".join(drawn.itertext())


def test_pictures_stay_inside_their_frames(run: dict[str, Any]) -> None:
    for drawn in (draw(kind, run) for kind in ("loss", "expert_loads", "light", "exposed")):
        _, _, width, height = map(float, (drawn.get("viewBox") or "").split())
        lefts, tops, rights, bottoms = zip(*boxes(drawn), strict=True)
        assert min(*lefts, *tops) >= -0.5, drawn.get("aria-label")
        assert max(rights) <= width + 0.5, drawn.get("aria-label")
        assert max(bottoms) <= height + 0.5, drawn.get("aria-label")


def test_page_says_that_losses_are_equal(run: dict[str, Any]) -> None:
    html = page(RunResult.model_validate(run))
    assert "All 4 fabrics have equal losses in all of 6 iterations" in html
    assert "Training</h2>" not in page(RunResult.model_validate(sample()))


def test_page_names_first_loss_that_differs(run: dict[str, Any]) -> None:
    losses = run["results"][2]["training"]["losses"]
    losses[4]["text"] = "3.1000000000000005"
    assert not agreement(fabrics_of(run))[1]
    expected = "Losses differ from iteration 4 on: eps 3.1, mixnet-spill 3.1000000000000005."
    assert expected in page(RunResult.model_validate(run))
    del losses[3:]
    assert agreement(fabrics_of(run))[0].endswith("iteration 3 on: eps 3.375, mixnet-spill none.")


def test_pictures_can_be_drawn_alone(run: dict[str, Any]) -> None:
    for kind in ("loss", "expert_loads", "light", "exposed"):
        assert read(Markup(picture(kind, fabrics_of(run)).svg)).get("aria-label")
    with pytest.raises(SpecError, match=r"loss: .*: the run has no such data to draw"):
        picture("loss", fabrics_of(sample()))


def test_program_that_prints_no_losses_is_named() -> None:
    run = training_sample()
    run["results"][0]["training"]["losses"] = []
    silent, *others = fabrics_of(run)
    told = "rank 0 printed no line that train.loss describes, so that there are no losses"
    assert told in remarks(silent)
    assert not any(told in remarks(other) for other in others)
