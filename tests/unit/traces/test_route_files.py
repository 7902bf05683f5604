"""Files with the routes of single tokens, and experiments that need them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from moefabric.config.loader import load_experiment
from moefabric.core.errors import SpecError
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.workload_loader import gating_notes
from moefabric.traces.gating_files import load_gating
from moefabric.traces.route_files import load_routes
from moefabric.ui.cli.main import main
from moefabric.workload.gating.token_routes import Pairs, TokenRoutes
from tests.support.paths import EXAMPLES
from tests.support.routes import topic_routes

ROUTES = topic_routes(8, 2, (3, 2, 8, 40), strength=3.0)
SETTINGS = ("gating.matrix=null", "gating.repeat=false", "gating.noise=0")


def write_archive(folder: Path) -> Path:
    path = folder / "routes.npz"
    assert ROUTES.scores is not None
    np.savez_compressed(path, routes=ROUTES.experts, scores=ROUTES.scores)
    return path


def write_lines(folder: Path, routes: TokenRoutes = ROUTES) -> Path:
    path = folder / "routes.jsonl"
    lines = [
        json.dumps({"step": i, "layer": n, "rank": r, "topk_ids": routes.experts[i, n, r].tolist()})
        for i, n, r in np.ndindex(*routes.experts.shape[:3])
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_tables(folder: Path) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="nightly: needs pyarrow: packaging/setup all")
    parquet = pytest.importorskip("pyarrow.parquet")
    for i, n in np.ndindex(*ROUTES.experts.shape[:2]):
        file = folder / f"iter_{i}" / f"layer_{n}.parquet"
        file.parent.mkdir(exist_ok=True)
        column = arrow.array(
            ROUTES.experts[i, n].reshape(-1, 2).tolist(), arrow.list_(arrow.int16())
        )
        parquet.write_table(arrow.table({"indices": column}), file)
    return folder


@pytest.mark.parametrize(
    "write", [write_archive, write_lines, pytest.param(write_tables, marks=pytest.mark.nightly)]
)
def test_formats_have_equal_routes_and_counts(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = write(tmp_path)
    routes = load_routes(path).of_ranks(8)
    assert np.array_equal(routes.experts, ROUTES.experts)
    counts = load_gating(path).tokens
    assert np.array_equal(counts.sum(axis=2), ROUTES.counts().sum(axis=2))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"layer":1,"topk_ids":[0,1]}\n{"layer":2,"topk_ids":[[0,1],[2,3]]}', "equally many"),
        ('{"layer":1,"topk_ids":[[0,1],[2]]}', "different numbers of experts"),
        ('{"layer":1,"topk_ids":[3,3]}', "a token has an expert twice"),
    ],
)
def test_uneven_routes_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    path.write_text(lines)
    with pytest.raises(SpecError, match=message):
        load_routes(path)


def test_counts_are_no_routes(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has counts by expert, but no array routes"):
        load_routes(EXAMPLES / "data/training-1200-steps.npz")
    np.savez(tmp_path / "routes.npz", routes=np.zeros((1, 1, 1, 2, 2), dtype=np.int64))
    with pytest.raises(SpecError, match="npz: routes: a token has an expert twice"):
        load_gating(tmp_path / "routes.npz")


def test_ranks_share_tokens_in_order() -> None:
    for ranks in (1, 4, 16):
        spread = ROUTES.of_ranks(ranks)
        assert spread.experts.shape[2:4] == (ranks, 320 // ranks)
        assert spread.counts().sum(axis=2).tolist() == ROUTES.counts().sum(axis=2).tolist()
    with pytest.raises(ValueError, match="320 tokens of a layer don't fill 7 ranks evenly"):
        ROUTES.of_ranks(7)


class NextToTheFirst:
    """Experts in the order of the tokens that they have in common with expert 0."""

    name = "next-to-the-first"

    def experts_in_order(self, tokens: NDArray[np.int64], seed: int) -> Sequence[int]:
        raise ValueError(f"{self.name} needs routes of single tokens: set gating.trace")

    def experts_by_coactivation(self, pairs: Pairs, ranks: int, servers: int) -> Sequence[int]:
        others = np.argsort(-pairs[0, 1:], kind="stable") + 1
        return [0, *others.tolist()]


def predicted(path: Path, *settings: str) -> dict[str, float]:
    """The first fabric of the prototype, with routes."""
    experiment = EXAMPLES / "prototype.yaml"
    spec = load_experiment(experiment, [*SETTINGS, f"gating.trace={path}", *settings])
    fabric: dict[str, float] = predict_fabrics(spec, experiment.parent).to_json()["fabrics"][0]
    return fabric


def test_fabric_has_copies_and_a_placement_of_its_own(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    times = {
        copies: predicted(path, f"fabrics[0].copies={copies}")["all_to_all_s"]
        for copies in ("expert", "server")
    }
    assert times["server"] < times["expert"]
    place = f"fabrics[0].place={__name__}:NextToTheFirst"
    assert predicted(path, "fabrics[0].copies=server", place)["all_to_all_s"] != times["server"]
    pruned = predicted(path, "fabrics[0].copies=server", "fabrics[0].copy_limit=1")
    assert pruned["all_to_all_s"] < times["server"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fabrics[0].copies=server"], r"copies: server needs routes of single tokens"),
        (
            [f"fabrics[0].place={__name__}:NextToTheFirst"],
            r"place: next-to-the-first needs routes of single tokens",
        ),
    ],
)
def test_gating_of_counts_names_the_remedy(settings: list[str], message: str) -> None:
    experiment = EXAMPLES / "prototype.yaml"
    spec = load_experiment(experiment, settings)
    with pytest.raises(SpecError, match=message):
        predict_fabrics(spec, experiment.parent).to_json()


def test_routes_have_neither_noise_nor_copies_of_experts(tmp_path: Path) -> None:
    path = write_archive(tmp_path)
    with pytest.raises(SpecError, match="noise: only counts have it: leave it out for routes"):
        predicted(path, "fabrics[0].copies=server", "gating.noise=0.1")
    with pytest.raises(SpecError, match="tokens choose 2 of 8 or more experts; the model has"):
        predicted(path, "fabrics[0].copies=server", "model={name: qwen-moe}")


def gating_notes_of(path: Path, **sizes: object) -> list[str]:
    settings = [f"gating={{trace: {path}}}", "training.iterations=1", "failures=[]"]
    settings += [f"{key.replace('__', '.')}={value}" for key, value in sizes.items()]
    return [*gating_notes(load_experiment(EXAMPLES / "prototype.yaml", settings), EXAMPLES)]


@pytest.mark.parametrize("write", [write_archive, write_lines])
def test_gating_of_other_layers_or_experts_of_a_token_is_noted(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = write(tmp_path)
    assert gating_notes_of(path, model__layers=2) == []
    layers = f"{path.name} has 2 layers, which the model's 6 replay repeatedly"
    assert gating_notes_of(path, model__layers=6) == [layers]
    experts = f"tokens of {path.name} have 2 experts, the model's have 4: only the shares of"
    (note,) = gating_notes_of(path, model="{name: mixtral-8x7b, layers: 2, top_k: 4}")
    assert note.startswith(experts)


def test_trace_of_tokens_with_different_numbers_of_experts_says_so(tmp_path: Path) -> None:
    path = tmp_path / "routes.jsonl"
    path.write_text('{"layer": 0, "topk_ids": [1, 2]}\n{"layer": 0, "topk_ids": [[0], [1]]}\n')
    output = CliRunner().invoke(main, ["trace", "info", str(path)]).output
    assert "note: tokens have 1 and 2 experts, but those of one model have equally many" in output
    assert (
        "note:"
        not in CliRunner().invoke(main, ["trace", "info", str(write_lines(tmp_path))]).output
    )
