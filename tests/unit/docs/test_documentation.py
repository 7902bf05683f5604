"""The documentation agrees with the project: links, examples and code blocks."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from moefabric.config.loader import load_fabric
from moefabric.config.model import preset
from moefabric.config.plugins import GROUPS, plugin_names
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.results.verdict import reasons
from moefabric.workload.placement.placements import expert_order

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)\)")
PATH = re.compile(r"`((?:moefabric|controller|emulator|agents|tests|docs|examples)/[\w./*-]+)`")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language on a page."""
    text = (ROOT / page).read_text()
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def test_tests_that_the_page_on_security_names_exist() -> None:
    page = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"\| `(tests/[\w/]+\.py)::(\w+)` \|", page)
    assert len(named) == page.count("| `tests/")
    missing = [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
    assert len(named) > 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = [target for target in LINK.findall(text) if "://" not in target]
    absent = [target for target in links if not (page.parent / target).exists()]
    absent += [path for path in PATH.findall(text) if not list(ROOT.glob(path.rstrip("/")))]
    assert absent == []


def test_setup_installs_the_program_that_lines_to_paste_need() -> None:
    pages = [page.name for page in PAGES if "| nc -q1 " in page.read_text()]
    assert len(pages) >= 4
    assert "netcat-openbsd" in (ROOT / "packaging/debian-run.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("guide", "example"), [("compare-fabrics", "training"), ("sweep", "sweep/nic-rates")]
)
def test_guide_shows_the_example_as_it_is(guide: str, example: str) -> None:
    (shown,) = blocks(f"docs/guides/{guide}.md", "yaml")
    lines = (ROOT / f"examples/{example}.yaml").read_text().splitlines()
    assert shown.splitlines() == [line for line in lines if not line.startswith("#")]


def test_policy_of_the_guide_gives_a_full_mesh() -> None:
    (source,) = blocks("docs/guides/write-a-policy.md", "python")
    namespace: dict[str, Any] = {}
    exec(compile(source, "write-a-policy.md", "exec"), namespace)
    fabric: Fabric = load_fabric(ROOT / "examples/fabric.yaml").build()
    region: Region = fabric.regions[0]
    demand = DemandMatrix(
        region.servers, [[0 if i == j else 1 for j in range(4)] for i in range(4)]
    )
    circuits = namespace["IN_ORDER"].circuits(fabric, region, demand, CircuitSet())
    assert {circuit.pair for circuit in circuits} == {
        (a, b) for i, a in enumerate(region.servers) for b in region.servers[i + 1 :]
    }


def test_parts_of_the_guide_about_plugins_have_their_protocols() -> None:
    command, placement_and_payload, transport, dialect = parts = tuple(
        dict[str, Any]() for _ in range(4)
    )
    for source, namespace in zip(blocks("docs/guides/plugins.md", "python"), parts, strict=True):
        exec(compile(source, "plugins.md", "exec"), namespace)
    order = expert_order(placement_and_payload["HeavyAndLight"](), np.array([[5, 9, 1, 3]] * 2), 1)
    assert order == (1, 2, 0, 3)
    assert placement_and_payload["FourBits"]().token_bytes(4096, 8192) == 2176
    assert transport["GENTLE"].congestion_control == "reno"
    assert dialect["TELNET"].options(idle_ns=5).prompt == "> "
    printed = CliRunner().invoke(command["servers"], [str(ROOT / "examples/fabric.yaml")])
    assert printed.output == "s0 s1 s2 s3\n"


def test_guide_about_plugins_names_all_groups_and_their_parts() -> None:
    page = (ROOT / "docs/guides/plugins.md").read_text()
    for group in GROUPS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{group}` |")]
        protocol = re.search(r"`(moefabric[a-z_.]+)\.([A-Z]\w+)`", row)
        assert protocol is not None
        assert hasattr(import_module(protocol[1]), protocol[2])
        for name in re.findall(r"`([^`]+)`", row.split("|")[-2]):
            assert name in plugin_names(group) or name.startswith("moefabric ")


@pytest.mark.parametrize("page", ["docs/guides/models-and-gating.md", "docs/guides/models.md"])
def test_python_of_the_guides_about_models_prints_what_they_say(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = blocks(page, "python")
    monkeypatch.chdir(ROOT)
    exec(compile(source, page, "exec"), {})
    assert f"`{capsys.readouterr().out.strip()}`" in (ROOT / page).read_text()


def test_sizes_of_models_in_the_guide_are_those_of_the_code() -> None:
    """The table's figures, row by row, in the order of the models."""
    rows = {
        cells[1]: cells[2:-1]
        for line in (ROOT / "docs/guides/models-and-gating.md").read_text().splitlines()
        if len(cells := [cell.strip().replace(",", "") for cell in line.split("|")]) == 8
    }
    names = ("mixtral-8x7b", "mixtral-8x22b", "llama-moe", "qwen-moe", "deepseek-r1")
    columns = [
        {
            "MoE layers; layers without experts": f"{model.layers}; {model.dense_layers}",
            "attention forward MFLOP a token (4096 tokens)": mega(model.attention_flops(4096)),
            "routed experts of a token MFLOP": mega(model.top_k * model.expert_flops()),
            "shared expert MFLOP": mega(6 * model.hidden * model.shared_ffn),
            "head MFLOP": mega(model.head_flops()),
            "most servers of a token": str(model.node_limit or ""),
        }
        for model in map(preset, names)
    ]
    for row in columns[0]:
        shown = [cell.removesuffix(" (latent)") for cell in rows[row]]
        assert shown == [column[row] for column in columns], row


def mega(flops: float) -> str:
    return f"{flops / 1e6:.0f}" if flops else ""


def percent(*bounds: float) -> str:
    return "; ".join(f"{bound:.0%}".replace("%", " %") for bound in bounds)


def verdict_rows() -> list[str]:
    """Return the limits of the verdicts' table as the code has them."""
    rows = []
    for reason, start in (
        (reasons.MEDIAN_ERROR, "median of the abs"),
        (reasons.P95_ERROR, "95th percentile of the abs"),
        (reasons.BIAS, "bias"),
        (reasons.LINK_GOODPUT, "median error of a full link"),
        (reasons.LATENESS, "lateness"),
        (reasons.DARK_TIME, "error of the OCS's dark time"),
        (reasons.DISTURBED, "collectives left out"),
    ):
        kinds = [reason.bounds, *([reason.tcp] if reason.tcp else [])]
        limits = [percent(*(bounds[number] or 0.0 for bounds in kinds)) for number in (0, 1)]
        rows.append(f"{start}.*{re.escape(' | '.join(limits))}")
    return [*rows, f"judged collectives \\| fewer than {reasons.FEW_COLLECTIVES.bounds[0]}"]


@pytest.mark.parametrize("row", verdict_rows())
def test_bounds_of_verdicts_are_those_of_the_code(row: str) -> None:
    assert re.search(rf"^\| {row}", (ROOT / "docs/results.md").read_text(), re.MULTILINE)


def test_guide_to_policies_has_the_members_of_a_demand_with_their_shapes() -> None:
    text = (ROOT / "docs/guides/write-a-policy.md").read_text()
    table = text.partition("| member | shape |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", table, re.MULTILINE)
    demand = DemandMatrix(("s0", "s1", "s2"), [[7.0, 1.0, 2.0], [0.0, 0.0, 3.0], [5.0, 0.0, 0.0]])
    shapes = {"n names": (3,), "n x n": (3, 3), "n": (3,), "a number": (), "n entries": (3,)}
    for cell, shape in rows:
        for name in re.findall(r"`(\w+)", cell):
            member = getattr(demand, name)
            value = member() if callable(member) else member
            if shape in shapes:
                values = list(value) if isinstance(value, dict) else value
                assert np.shape(values) == shapes[shape], name
    named = set(re.findall(r"`(?:DemandMatrix\.)?(\w+)", text))
    assert {name for name in dir(demand) if not name.startswith("_")} <= named
    assert next(iter(demand.pairs())) == ("s0", "s1", 1.0)
    assert (demand.symmetric()[0, 2], demand.symmetric()[0, 0], demand.total_bytes) == (7, 0, 11)
    assert demand.port_bytes.tolist() == [5, 3, 5]
