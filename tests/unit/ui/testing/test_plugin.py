"""The options, the marker and the names of pytest's plugin, without a fabric."""

import json
import os
from pathlib import Path

import pytest

import moefabric.ui.testing.lab  # noqa: F401 - pytester forgets modules, and numpy loads once only
from tests.support.paths import EXAMPLES

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.fabric("lab.yaml")
def test_marked(fabric):
    pass

def test_shared(shared_fabric):
    pass

def test_experiment(run_experiment):
    run_experiment("nowhere.yaml")

def test_plain():
    pass
"""
OWN_FIXTURE = """
import pytest

@pytest.fixture
def fabric():
    return 7

def test_of_another_fabric(fabric):
    assert fabric == 7
"""
RUNS = """
from moefabric import Experiment, Result

class Finished(Experiment):
    def run(self):
        return Result.load("run.json")

def test_experiment(run_experiment):
    assert run_experiment(Finished.__new__(Finished)).verdict == "degraded"
"""


def outcome(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs", *options)


def test_tests_with_fabrics_are_skipped_without_the_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = outcome(pytester)
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(["*uses a fabric: run pytest with --moefabric*"])


def test_fixture_of_the_same_name_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OWN_FIXTURE)
    outcome(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "configuration", "skipped"),
    [
        ((), "", 3),
        (("--moefabric-no-root=fail",), "", 0),
        ((), "[pytest]\nmoefabric_no_root = fail\n", 0),
        (("--moefabric-no-root=skip",), "[pytest]\nmoefabric_no_root = fail\n", 3),
    ],
)
def test_without_root_tests_are_skipped_or_fail(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    configuration: str,
    skipped: int,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    pytester.makepyfile(SUITE)
    pytester.makefile(".ini", pytest=configuration)
    result = outcome(pytester, "--moefabric", *options)
    counts = result.parseoutcomes()
    assert counts["passed"] == 1
    assert counts.get("skipped", 0) == skipped
    if skipped:
        result.stdout.fnmatch_lines(["*a fabric needs root: run pytest with sudo*"])
    else:
        assert counts.get("errors", 0) + counts.get("failed", 0) == 3


def test_test_without_a_described_fabric_says_where_to_describe_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    pytester.makepyfile(SUITE)
    result = outcome(pytester, "--moefabric", "-k", "shared")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["which fabric? Give @pytest.mark.fabric(FILE)*"])


def test_fault_of_a_fabric_file_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    pytester.makepyfile(SUITE)
    Path("lab.yaml").write_text("fabric: lab\nnic_rate: fast\n")
    result = outcome(pytester, "--moefabric", "-k", "marked")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nic_rate*fast*"])


@pytest.mark.parametrize("verdict", ["degraded", "invalid"])
def test_run_with_an_invalid_verdict_fails_the_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run = json.loads((EXAMPLES / "ci/before.json").read_text())
    run["verdict"] = run["results"][0]["fidelity"]["verdict"] = verdict
    run["results"][0]["fidelity"]["reasons"] = ["2 bytes are corrupt"]
    Path("run.json").write_text(json.dumps(run))
    pytester.makepyfile(RUNS)
    result = outcome(pytester, "--moefabric")
    if verdict == "invalid":
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["the run's verdict is invalid", "mixnet: 2 bytes are corrupt"])
    else:
        result.assert_outcomes(passed=1)


def test_options_are_described(pytester: pytest.Pytester) -> None:
    result = outcome(pytester, "--help")
    result.stdout.fnmatch_lines(["*--moefabric-artefacts=DIR*"])
    outcome(pytester, "--markers").stdout.fnmatch_lines(["@pytest.mark.fabric(file=None, ?*keys)*"])
