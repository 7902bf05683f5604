"""A policy of another package, installed with pip, is used by the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import POLICY_PACKAGE, install_package
from tests.support.paths import EXAMPLES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(POLICY_PACKAGE, tmp_path_factory.mktemp("stranger"))


def moefabric(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", "from moefabric.ui.cli.main import main; main()", *words],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_policy_is_listed_checked_planned_with_and_predicted(
    site: Path, tmp_path: Path
) -> None:
    rows = json.loads(moefabric(site, "policy", "list", "--json").stdout)
    assert rows[-1]["reference"] == "best_pairs:BestPairs"
    checked = moefabric(site, "policy", "check", "best-pairs")
    assert checked.returncode == 0, checked.stderr
    demand = tmp_path / "demand.json"
    demand.write_text("[[0, 9e9, 1e9], [1e9, 0, 0], [0, 3e9, 0]]")
    for reference in ("best-pairs", "best_pairs:BestPairs"):
        words = ("--demand", str(demand), "--degree", "1", "--policy", reference, "--json")
        planned = json.loads(moefabric(site, "plan", *words).stdout)
        assert planned["policy"] == "best-pairs"
        assert planned["circuits"] == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    setting = "fabrics[1].policy=best-pairs"
    experiment = str(EXAMPLES / "prototype.yaml")
    predicted = moefabric(site, "predict", experiment, "--set", setting, "--json")
    assert predicted.returncode == 0, predicted.stderr
    fabric = json.loads(predicted.stdout)["fabrics"][1]
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
    words = ("predict", str(EXAMPLES / "prototype.yaml"), "--set", setting)
    text = moefabric(tmp_path, *words).stdout
    assert "mixnet: policy failing:Failing failed: RuntimeError: no idea" in text
    fabric = json.loads(moefabric(tmp_path, *words, "--json").stdout)["fabrics"][1]
    assert fabric["light_share"] == 0
