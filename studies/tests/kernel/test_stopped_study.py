"""A study that was killed goes on with the run that was under way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kernel.test_stopped_run import EXPERIMENT, await_iterations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
COMMAND = """
import sys
from moefabric.api.plugins import Section
from moefabric.ui.cli.main import main
from moefabric_studies.systems import study
from moefabric_studies.systems.measured import iteration_ratios

class Setup(Section):
    experiment: dict

class Gains:
    setup = Setup
    def measure(self, setup, context):
        run = context.run(setup.experiment)
        gains = iteration_ratios(run["eps"], run["mixnet"])
        return study.Outcome({"gain": study.Measure.median_of(gains)}, runs=[run])

study.plugins.load_named_by_file = lambda *_: Gains()
main()
"""
STUDY = {
    "system": "gains",
    **dict.fromkeys(("title", "paper", "sources", "mechanism", "method"), "Gains"),
    "claims": [{"id": "G1", "claim": "faster", "measure": "gain", "method": "emulated"}],
}


def test_killed_study_keeps_the_iterations_of_its_run(tmp_path: Path) -> None:
    file, output = tmp_path / "gains.yaml", tmp_path / "out.json"
    file.write_text(yaml.safe_dump({**STUDY, "setup": {"experiment": yaml.safe_load(EXPERIMENT)}}))
    words = [sys.executable, "-c", COMMAND, "system", str(file), "--json", str(output)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, process_group=0) as first:
        await_iterations(first, tmp_path / "out.json.units.stopped.jsonl", "mixnet")
        first.kill()
    last = subprocess.run(
        [*words, "--resume"], capture_output=True, text=True, timeout=300, check=False
    )
    assert last.returncode in {0, 3}, last.stderr  # the machine may be too slow for a value
    assert "eps:" not in last.stderr, "a finished fabric is not brought up again"
    [system] = json.loads(output.read_text())["systems"]
    assert [one["fabric"] for one in system["runs"]] == ["stopped/eps", "stopped/mixnet"]
    assert len(system["claims"][0]["samples"]) == 4
    assert not list(tmp_path.glob("out.json.*"))
