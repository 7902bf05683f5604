"""The options, the marker and the names of pytest's plugin, without a fabric."""

import json
import os
from pathlib import Path

import pytest

from moefabric import EmulatedFabric
from moefabric.ui.testing.lab import FabricUnderTest
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


USES = """
import pytest
from moefabric import SpecError

@pytest.mark.fabric(regions=[{"servers": 2}], nics={"optical": 1, "electrical": 1})
def test_asks_wrongly(fabric):
    assert fabric.seen.nic_rate == 100e9
    fabric.light()

@pytest.mark.fabric(regions=[{"servers": 2}], nics={"optical": 1, "electrical": 1})
def test_has_a_bug(fabric):
    fabric.capture(None)

@pytest.mark.fabric(regions=[{"servers": 1}], nics={"optical": 1})
def test_is_misdescribed(fabric):
    pass
"""


def outcome(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs", *options)


@pytest.fixture
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


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


@pytest.mark.usefixtures("_as_root")
def test_test_without_a_described_fabric_says_where_to_describe_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SUITE)
    result = outcome(pytester, "--moefabric", "-k", "shared")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["which fabric? Give @pytest.mark.fabric(FILE)*"])


@pytest.mark.usefixtures("_as_root")
def test_marker_without_effect_is_refused(pytester: pytest.Pytester) -> None:
    marked = "@pytest.mark.fabric('a')\ndef test_shared"
    pytester.makepyfile(SUITE.replace("def test_shared", marked))
    result = outcome(pytester, "--moefabric", "-k", "shared")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["shared_fabric has no marker `fabric`: use the fixture fabric"])


@pytest.mark.usefixtures("_as_root")
def test_fault_of_a_fabric_file_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    Path("lab.yaml").write_text("fabric: lab\nnic_rate: fast\n")
    result = outcome(pytester, "--moefabric", "-k", "marked")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nic_rate*fast*"])


@pytest.mark.usefixtures("_as_root")
def test_missing_fabric_file_is_one_error_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = outcome(pytester, "--moefabric", "-k", "marked")
    result.assert_outcomes(errors=1)
    before, _, _ = result.stdout.str().partition("short test summary")
    assert before.count("No such file or directory") == 1
    assert "exception" not in before


@pytest.mark.parametrize("verdict", ["degraded", "invalid"])
@pytest.mark.usefixtures("_as_root")
def test_run_with_an_invalid_verdict_fails_the_test(
    pytester: pytest.Pytester, verdict: str
) -> None:
    run = json.loads((EXAMPLES / "ci/before.json").read_text())
    run["verdict"] = run["results"][0]["fidelity"]["verdict"] = verdict
    run["results"][0]["fidelity"]["reasons"] = ["2 bytes are corrupt"]
    Path("run.json").write_text(json.dumps(run))
    pytester.makepyfile(RUNS)
    result = outcome(pytester, "--moefabric")
    if verdict == "invalid":
        result.assert_outcomes(failed=1)
        reason = "mixnet is invalid: 2 bytes are corrupt"
        result.stdout.fnmatch_lines(["the run's verdict is invalid", reason])
    else:
        result.assert_outcomes(passed=1)


def test_options_are_described(pytester: pytest.Pytester) -> None:
    result = outcome(pytester, "--help")
    result.stdout.fnmatch_lines(["*--moefabric-artefacts=DIR*"])
    outcome(pytester, "--markers").stdout.fnmatch_lines(["@pytest.mark.fabric(file=None, ?*keys)*"])


@pytest.fixture
def _nothing_runs(monkeypatch: pytest.MonkeyPatch, _as_root: None) -> None:
    """Let the plugin hand out a fabric that isn't up."""

    def up(described: EmulatedFabric) -> None:
        monkeypatch.setattr(FabricUnderTest, "seen", described.spec, raising=False)

    monkeypatch.setattr(EmulatedFabric, "up", up)
    monkeypatch.setattr(FabricUnderTest, "__enter__", lambda lab: lab)
    monkeypatch.setattr(FabricUnderTest, "__exit__", lambda *_: None)


@pytest.mark.usefixtures("_nothing_runs")
def test_error_of_moefabric_shows_the_frames_of_the_test_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES)
    result = outcome(pytester, "--moefabric", "-k", "asks_wrongly")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "fabric.light()" in text
    assert "light: give either circuits" in text
    assert "lab.py" not in text
    assert "in light" not in text


@pytest.mark.usefixtures("_nothing_runs")
def test_other_errors_show_all_frames(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES)
    result = outcome(pytester, "--moefabric", "-k", "has_a_bug")
    result.assert_outcomes(failed=1)
    assert "lab.py" in result.stdout.str()


@pytest.mark.usefixtures("_nothing_runs")
def test_wrong_fabric_is_its_message_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES)
    result = outcome(pytester, "--moefabric", "-k", "is_misdescribed")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["regions?0?.servers: must be at least 2, 1 given"])
    assert "Error" not in result.stdout.str().replace("ERROR", "")
