"""A policy of another package, installed with pip, is used by the commands."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.packages import POLICY_PACKAGE, install_package
from tests.support.paths import EXAMPLES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(POLICY_PACKAGE, tmp_path_factory.mktemp("stranger"))


PROGRAM = """
import json, sys
from click.testing import CliRunner
from moefabric.ui.cli.main import main
outcomes = [CliRunner().invoke(main, words) for words in json.loads(sys.argv[1])]
print(json.dumps([(one.exit_code, one.output) for one in outcomes]))
"""


def moefabric(site: Path, *commands: Sequence[object], status: int = 0) -> list[str]:
    """Return what commands print that exit alike, all run by a process that finds the package."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([list(map(str, words)) for words in commands])],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert [code for code, _ in outcomes] == [status] * len(commands), outcomes
    return [output for _, output in outcomes]


def test_installed_policy_is_listed_checked_planned_with_and_predicted(
    site: Path, tmp_path: Path
) -> None:
    demand = tmp_path / "demand.json"
    demand.write_text("[[0, 9e9, 1e9], [1e9, 0, 0], [0, 3e9, 0]]")
    plan = ("plan", "--demand", demand, "--degree", "1", "--json", "--policy")
    setting = "fabrics[1].policy=best-pairs"
    listed, _, *planned, predicted = moefabric(
        site,
        ("policy", "list", "--json"),
        ("policy", "check", "best-pairs"),
        (*plan, "best-pairs"),
        (*plan, "best_pairs:BestPairs"),
        ("predict", EXAMPLES / "prototype.yaml", "--set", setting, "--json"),
    )
    assert json.loads(listed)[-1]["reference"] == "best_pairs:BestPairs"
    for output in planned:
        assert json.loads(output)["policy"] == "best-pairs"
        assert json.loads(output)["circuits"] == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    fabric = json.loads(predicted)["fabrics"][1]
    assert (fabric["policy"], fabric["policy_faults"]) == ("best-pairs", [])
    assert fabric["reconfigurations"] > 0
    assert fabric["light_share"] > 0.3


def test_policy_that_fails_is_predicted_on_the_eps_and_named(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from moefabric.planner.policy import EpsOnly\n"
        "class Failing(EpsOnly):\n"
        "    def circuits(self, *_):\n"
        "        raise RuntimeError('no idea')\n"
    )
    setting = "fabrics[1].policy=failing:Failing"
    words = ("predict", EXAMPLES / "prototype.yaml", "--set", setting)
    text, document = moefabric(tmp_path, words, (*words, "--json"), status=3)
    place = f"{tmp_path / 'failing.py'}:4"
    assert f"mixnet: policy failing:Failing failed: RuntimeError: no idea, {place}" in text
    assert "mixnet (failed)" in text
    fabric = json.loads(document)["fabrics"][1]
    assert fabric["light_share"] == 0
    assert fabric["all_to_all_vs_eps"] is None
    assert fabric["cost"]["perf_per_dollar_vs_eps"] is None
