"""`moefabric policy`: the list, a new package and the check of policies."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from moefabric.ui.cli.main import main
from tests.support import faulty_policies
from tests.support.paths import EXAMPLES, REPOSITORY


def moefabric(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


FAULTY = faulty_policies.__name__


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Raising", "failed: ValueError: no idea, {file}:"),
        ("Leaving", "failed: SystemExit: 0, {file}:"),
        (
            "Doubling",
            "failed: CircuitConflictError: more than one circuit would end at s0/o0, {file}:",
        ),
        ("Electrical", "failed: ValueError: s0/e0~s1/o0: s0/e0 is not an optical NIC, {file}:"),
        ("Undivided", "failed: TypeError: split() returned NoneType, not a Split, {file}:"),
        ("Foreign", "failed: ValueError: s77/o0, s78/o0: not an optical NIC of r0, {file}:"),
        ("Factless", "fails: ValueError: no fact, {file}:"),
        ("UNORDERED", "failed: TypeError: order returned NoneType, not pairs of servers, {file}:"),
        ("BESIDE_ITSELF", "failed: ValueError: order returned the pair (0, 0); a pair is two"),
    ],
)
def test_plan_by_a_policy_that_fails_is_one_line(name: str, fault: str) -> None:
    demand = EXAMPLES / "data/demand-4x4.json"
    plan = "plan", "--demand", demand, "--degree", "3", "--policy"
    refused = moefabric(*plan, f"{FAULTY}:{name}")
    assert refused.exit_code == 1
    (line,) = refused.output.splitlines()
    assert line.startswith("moefabric: policy")
    assert fault.format(file=faulty_policies.__file__) in line


def test_list_shows_what_each_policy_is() -> None:
    rows = {row["name"]: row for row in json.loads(moefabric("policy", "list", "--json").output)}
    assert rows["joint-multihop"]["forwards"]
    assert rows["topoopt"]["suits_patch_panel"]
    assert rows["eps"]["reference"] == "moefabric.planner.policy:EpsOnly"
    assert len(moefabric("policy", "list").output.splitlines()) == 1 + len(rows)


def test_new_package_in_a_checkout_passes_its_own_test_and_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = (REPOSITORY / "pyproject.toml").read_text()
    assert "-p_hypothesis_pytestplugin" in configuration, "which runs need not"
    (tmp_path / "pyproject.toml").write_text(configuration.replace("hypothesis", "not_installed"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = moefabric("policy", "new", "best-pairs", "--folder", tmp_path)
    assert made.exit_code == 0, made.output
    package = tmp_path / "best-pairs"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
    checked = moefabric("policy", "check", package, "--json")
    assert checked.exit_code == 0, checked.output
    (report,) = json.loads(checked.output)
    assert report["policy"] == "best-pairs"
    assert {law["outcome"] for law in report["laws"]} == {"kept"}
    assert list(report["seconds"]) == ["8", "16", "32", "64", "128"]
    monkeypatch.chdir(package)
    experiment = yaml.safe_load((EXAMPLES / "prototype.yaml").read_text())
    experiment["fabrics"][1]["policy"] = "best_pairs:BestPairs"
    experiment["gating"]["matrix"] = str(EXAMPLES / experiment["gating"]["matrix"])
    Path("mine.yaml").write_text(yaml.safe_dump(experiment))
    assert "--plugins any" in moefabric("predict", "mine.yaml").output
    predicted = moefabric("predict", "mine.yaml", "--plugins", "any")
    assert predicted.exit_code == 0, predicted.output
    again = moefabric("policy", "new", "best-pairs", "--folder", tmp_path)
    assert again.exit_code == 1
    assert "exists already" in again.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Best", "lower-case letters, digits and dashes are needed"),
        ("../up", "lower-case letters, digits and dashes are needed"),
        ("mixnet", "mixnet is a policy already"),
        ("statistics", "statistics is a module of Python already"),
    ],
)
def test_name_that_cannot_be_taken_is_refused(tmp_path: Path, name: str, message: str) -> None:
    refused = moefabric("policy", "new", name, "--folder", tmp_path)
    assert refused.exit_code == 1
    assert message in refused.output
    assert not list(tmp_path.iterdir())


def test_new_package_makes_no_folder_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "typo"
    refused = moefabric("policy", "new", "hottest-first", "--folder", folder)
    assert refused.exit_code == 2
    assert f"there is no folder {folder}: make it by `mkdir -p {folder}`" in refused.output
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert moefabric("policy", "new", "hottest-first", "--folder", "typo").exit_code == 0
    assert (folder / "hottest-first" / "README.md").exists()


@pytest.mark.parametrize("folder", ["/proc", "/dev/null"])
def test_new_package_where_nothing_can_be_written_is_refused(folder: str) -> None:
    refused = moefabric("policy", "new", "hottest-first", "--folder", folder)
    assert refused.exit_code == 2
    assert f"{folder}/hottest-first: " in refused.output.splitlines()[-1]


def test_new_package_without_room_is_not_written_in_part(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))  # bytes: less than its largest file
    try:
        refused = moefabric("policy", "new", "hottest-first", "--folder", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.exit_code == 1
    (line,) = refused.output.splitlines()
    assert line.startswith(f"moefabric: {tmp_path}/hottest-first: File too large; free some room")
    assert not list(tmp_path.iterdir())


def test_check_of_a_policy_that_breaks_a_law_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "losing_policy.py").write_text(
        "from moefabric.planner.policy import EpsOnly\n"
        "from moefabric import Split\n"
        "class Losing(EpsOnly):\n"
        "    def split(self, fabric, demand, circuits):\n"
        "        return Split(())\n"
    )
    monkeypatch.chdir(tmp_path)
    checked = moefabric("policy", "check", "losing_policy:Losing")
    assert checked.exit_code == 1
    assert "  broken    bytes" in checked.output
    assert "0 shares of 100,000,000 bytes owed" in " ".join(checked.output.split())


def test_check_whose_policy_loads_too_long_ends() -> None:
    checked = moefabric("policy", "check", f"{FAULTY}:never", "--limit", "0.2")
    assert checked.exit_code == 1
    assert "the check takes longer than 0.2 s: --limit allows more" in checked.output
    refused = moefabric("policy", "check", "mixnet", "--limit", "1m")
    assert "Invalid value for '--limit': '1m' is not a valid number of seconds." in refused.output


SLOW_POLICY = """
from threading import Event
from moefabric.planner.policy import EpsOnly

class Slow(EpsOnly):
    def circuits(self, fabric, region, demand, current):
        Event().wait(None if len(region.servers) >= {servers} else 0)
        return super().circuits(fabric, region, demand, current)
"""


@pytest.mark.parametrize(
    ("servers", "part", "remedy"),
    [
        (2, "laws at 2 servers took the last", "--limit allows more"),
        (4, "laws at 4 servers took the last", "--up-to 3 leaves larger regions out, --limit"),
        (64, "times at 64 servers took the last", "--up-to 32 leaves larger regions out, --limit"),
    ],
)
def test_check_that_takes_too_long_prints_the_laws_so_far_and_where_the_time_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int, part: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"slow_{servers}.py").write_text(SLOW_POLICY.format(servers=servers))
    limit = 3 if servers < 8 else 10
    checked = moefabric("policy", "check", f"slow_{servers}:Slow", "--limit", limit)
    text = " ".join(checked.output.split())
    assert checked.exit_code == 1
    assert f"unfinished: the check takes longer than {limit} s, and {part}" in text
    assert remedy in text
    assert ("kept bytes" in text) == (servers > 2), text
    if servers == 64:
        within = moefabric("policy", "check", "slow_64:Slow", "--up-to", "32", "--json")
        (report,) = json.loads(within.output)
        assert (within.exit_code, list(report["seconds"])) == (0, ["8", "16", "32"])


@pytest.mark.parametrize(
    ("method", "meant"),
    [("splitt", "split"), ("with_horizn", "with_horizon"), ("spread_evenly", None)],
)
def test_check_warns_of_a_method_that_is_named_almost_as_an_inherited_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, meant: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"near_{method}.py").write_text(
        "from moefabric.planner.policy import EpsOnly\n"
        f"class Near(EpsOnly):\n    def {method}(self, fabric, demand, circuits): ...\n"
    )
    checked = moefabric("policy", "check", f"near_{method}:Near", "--up-to", "3")
    assert checked.exit_code == 0
    text = " ".join(checked.output.split())
    assert (f"Near.{method} is never called; did you mean {meant}?" in text) == bool(meant)
    assert ("warning names" in text) == bool(meant)


def test_check_of_a_folder_without_policies_names_the_file(tmp_path: Path) -> None:
    checked = moefabric("policy", "check", tmp_path)
    assert checked.exit_code == 1
    assert f"{tmp_path}/pyproject.toml: no entry points of moefabric.policies" in checked.output
