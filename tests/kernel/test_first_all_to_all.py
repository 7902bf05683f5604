"""The first all-to-all of a layer on packets, under all four policies: what it waits for, which way its bytes go, and that none is lost."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moefabric.iteration import FIRST
from tests.namespaces import Island

REPOSITORY = Path(__file__).resolve().parents[2]
MOEFABRIC = shutil.which("moefabric", path=str(REPOSITORY / ".venv/bin")) or ""
EXPERIMENT = """
experiment: firsts
model: {{name: mixtral-8x7b, layers: 2, experts: 16}}
training: {{ep: 8, tp: 2, sequence: 4096, micro_batch: 16, iterations: 2, gpu_tflops: 1000}}
gating: {{trace: {trace}, first: 600}}
wiring:
  gpus_per_server: 4
  nic_rate: 100Gb/s
  regions:
    - servers: 4
      ocs: {{settle: 25ms}}
fabrics:
  - {{name: block, optical: 1, electrical: 1, policy: mixnet}}
  - {{name: reuse, optical: 1, electrical: 1, policy: mixnet, first: reuse}}
  - {{name: predict, optical: 1, electrical: 1, policy: mixnet, first: predict}}
  - {{name: divert, optical: 1, electrical: 1, policy: mixnet, first: divert}}
scale: {{bytes: 2500, dilation: 1}}
"""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(not MOEFABRIC, reason="needs the command: make install"),
]


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """One run of one fabric under the four policies, by name."""
    with ExitStack() as undo:
        island = Island(["home"], undo)
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mf")))
        spec, out = folder / "firsts.yaml", folder / "out.json"
        spec.write_text(EXPERIMENT.format(trace=REPOSITORY / "examples/data/training-1200-steps.npz"))
        command = ["nsenter", f"--net=/run/netns/{island.netns('home')}", "--", MOEFABRIC, "run"]
        done = subprocess.run(
            [*command, str(spec), "--json", str(out)],
            env={**os.environ, "MOEFABRIC_RUN_DIR": str(folder / "run")},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 3), done.stderr
        yield {entry["fabric"]: entry for entry in json.loads(out.read_text())["results"]}


def dispatches(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in entry["collectives"] if (c["kind"], c["pass"]) == ("dispatch", "forward")]


def test_who_waits_for_light_is_exposed_longest(results: dict[str, Any]) -> None:
    exposed = {name: entry["first_all_to_all"]["exposed_s"] for name, entry in results.items()}
    assert exposed["block"] > max(exposed[name] for name in ("reuse", "predict", "divert"))
    waited = {name: entry["first_all_to_all"]["waited_s"] for name, entry in results.items()}
    told = max(waited["reuse"], waited["divert"])
    assert waited["block"] > told + 0.020, "the others wait to be told alone"


@pytest.mark.parametrize("first", FIRST)
def test_every_byte_arrives_once(results: dict[str, Any], first: str) -> None:
    integrity = results[first]["integrity"]
    assert integrity["bytes_sent"] == integrity["bytes_received"] > 0
    assert (integrity["corrupt"], integrity["lost_transfers"]) == (0, 0)
    owed, sent = (
        [(c["bytes"], c["layer"], c["kind"]) for c in results[name]["collectives"]]
        for name in ("block", first)
    )
    for (most, *place), (size, *other) in zip(owed, sent, strict=True):
        assert (place, size) == (other, pytest.approx(most, abs=2))


@pytest.mark.parametrize("first", FIRST)
def test_when_the_bytes_come_back_the_light_is_the_exact_demands(results: dict[str, Any], first: str) -> None:
    def combined(entry: dict[str, Any]) -> list[int]:
        return [c["bytes_by_light"] for c in entry["collectives"] if c["kind"] == "combine"]

    assert combined(results[first]) == pytest.approx(combined(results["block"]), abs=2)
    lit = [results[name]["circuits"] for name in ("block", first)]
    assert sorted(map(sorted, lit[0])) == sorted(map(sorted, lit[1]))


def test_diverted_bytes_take_new_light_while_they_go(results: dict[str, Any]) -> None:
    moved = [c for c in dispatches(results["divert"]) if c["moved_now"]]
    assert moved
    for collective in moved:
        assert collective["dark_s"] == pytest.approx(0.025, abs=0.01)
        assert min(collective["bytes_by_light"], collective["bytes_by_eps"]) > 0


def test_what_was_foreseen_is_told(results: dict[str, Any]) -> None:
    foresight = results["predict"]["first_all_to_all"]["foresight"]
    assert (foresight["guessed"], foresight["unguessed"]) == (2, 2), (
        "nothing is learnt in the first iteration"
    )
    assert foresight["top_k_hits"] > foresight["random_hits"]
    assert foresight["wrong_guess_s"] >= 0
