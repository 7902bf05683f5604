"""Journal of a run: nothing that ended is lost, and it yields the result of whole records."""

import gc
import resource
import signal
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.commands import journalled
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import JournalInUseError, OutputError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailureRecord, IterationWindow
from moefabric.execution.clock import SkippingClock
from moefabric.prediction.first_all_to_all import first_dispatches
from moefabric.results.journal import (
    HeaderLine,
    Journal,
    JournalReader,
    ResultLine,
    SegmentLine,
    read_journal,
    resumable,
    without_rows,
)
from moefabric.results.model import InputDigest, ScaleFactors
from moefabric.results.records.records import RunFailures
from moefabric.results.verdict.fabric_result import (
    fabric_result,
    summed_outcomes,
    wiring_summary,
    with_cost_and_failures,
)
from moefabric.results.verdict.iteration_outcome import IterationOutcome, outcomes_of
from moefabric.runtime.cpu_monitor import CpuSample, CpuSampler
from tests.support.recorded_runs import RecordedRun


def recorded(path: Path, iterations: int, planned: int | None = None) -> RecordedRun:
    """Record iterations of a fabric that has `planned` ones."""
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, planned or iterations)
        lab.run(journal, iterations)
    return lab


def test_journal_yields_the_result_of_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lab = recorded(path, 5)
    outcomes = list(JournalReader(path).outcomes("mixnet"))
    wiring = wiring_summary(lab.fabric)
    summed = summed_outcomes(wiring, "mixnet", "mixnet", outcomes, cpu_idle=[0.5])
    journalled = with_cost_and_failures(summed, lab.fabric, RunFailures(), [])
    whole = RecordedRun(path, keep=True)
    with Journal(tmp_path / "unused.jsonl") as unused:
        runs = whole.run(unused, 5).runs
    expected = fabric_result(whole.fabric, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[])
    assert journalled.to_json() == expected.to_json()


def test_journal_keeps_the_idle_shares_of_the_machine(tmp_path: Path) -> None:
    path, cpu = tmp_path / "run.jsonl", CpuSampler()
    lab = RecordedRun(path)
    sending_ns = lab.clock.now_ns() + 60_000_000
    cpu.samples.append(CpuSample(sending_ns, sending_ns + 20_000_000, 0.25))
    with Journal(path) as journal:
        lab.begin(journal, 1)
        lab.run(journal, 1, cpu=cpu)
    [outcome] = JournalReader(path).outcomes("mixnet")
    assert list(outcome.measured.cpu_idle) == [0.25]
    result = summed_outcomes(wiring_summary(lab.fabric), "mixnet", "mixnet", [outcome])
    assert result.fidelity.cpu_idle_min == 0.25


def test_iterations_are_in_the_file_as_soon_as_they_end(tmp_path: Path) -> None:
    """Another process sees each line: SIGKILL loses the iteration under way at most."""
    path, seen = tmp_path / "run.jsonl", list[int]()
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, 3)
        for number in range(3):
            lab.run(journal, 1, first=number)
            seen.append(len(JournalReader(path).iterations("mixnet")))
    assert seen == [1, 2, 3]


def test_journal_of_a_run_under_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(SegmentLine(started="first", host="a"))
        before = path.read_bytes()
        with pytest.raises(OutputError, match="another run writes to it; give another --json"):
            Journal(path)
        assert path.read_bytes() == before
    with Journal(path):
        assert path.with_name("run.jsonl.old").read_bytes() == before
        assert path.read_bytes() == b""


def test_cut_off_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded(path, 2)
    text = path.read_bytes()
    path.write_bytes(text[:-10])
    reader = JournalReader(path)
    assert reader.iterations("mixnet") == [(0, 0)]
    assert reader.size == text[:-1].rindex(b"\n") + 1
    with Journal(path, reader.size):
        assert JournalReader(path).iterations("mixnet") == [(0, 0)]
    assert path.read_bytes() == text[: reader.size]


def test_wrong_line_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded(path, 1)
    path.write_bytes(path.read_bytes() + b'{"type": "iteration", "fabric": "mixnet"}\n')
    with pytest.raises(SpecError, match=r"run\.jsonl: line 4: result: Field required"):
        JournalReader(path)


@pytest.mark.parametrize("contents", [b"", b"{}\n", b"[]\n", b"not json\n", b"\xff\n", b"half"])
def test_other_files_are_no_journals(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(contents)
    with pytest.raises(SpecError, match=r"run\.jsonl"):
        JournalReader(path)


def test_full_file_system_keeps_whole_lines_and_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lab = recorded(path, 1, planned=3)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, limits[1]))
    try:
        with (
            Journal(path, len(before)) as journal,
            pytest.raises(OutputError, match=r"run\.jsonl: File too large; free some room"),
        ):
            lab.run(journal, 1, first=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before


def test_iteration_that_runs_again_replaces_itself_and_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lab = recorded(path, 4)
    with Journal(path, path.stat().st_size) as journal:
        lab.run(journal, 1, first=2)
    assert JournalReader(path).iterations("mixnet") == [(0, 0), (0, 1), (0, 2)]


def test_stopped_run_is_incomplete_and_degraded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded(path, 2, planned=5)
    run = read_journal(path)
    assert run.incomplete == "mixnet was stopped after 2 of 5 iterations"
    [result] = run.results
    assert (len(result.iterations), len(result.collectives)) == (2, 4)
    assert run.verdict == result.fidelity.verdict == "degraded"
    assert "the fabric was stopped after 2 of 5 iterations" in result.fidelity.reasons


def test_finished_fabric_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lab = RecordedRun(path, keep=True)
    with Journal(tmp_path / "unused.jsonl") as unused:
        runs = lab.run(unused, 3).runs
    result = fabric_result(lab.fabric, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[])
    recorded(path, 3)
    with Journal(path, path.stat().st_size) as journal:
        journal.append(ResultLine(result=without_rows(result)))
    run = read_journal(path)
    assert not run.incomplete
    assert run.results[0].to_json() == result.to_json()


def test_outcome_of_an_iteration_is_the_same_alone_and_among_others(tmp_path: Path) -> None:
    lab = RecordedRun(tmp_path / "run.jsonl", keep=True)
    with Journal(tmp_path / "unused.jsonl") as unused:
        runs = lab.run(unused, 3).runs
    dispatches = partial(first_dispatches, lab.fabric, "mixnet")
    together = outcomes_of(lab.fabric, runs, first_dispatches=dispatches)
    alone = [
        one for run in runs for one in outcomes_of(lab.fabric, [run], first_dispatches=dispatches)
    ]
    assert alone == together
    assert not any(one.flows for one in together)
    assert all(one.flows for one in outcomes_of(lab.fabric, runs, flows=True))


def rounded(path: Path) -> Iterator[Any]:
    """Yield the iterations of a journal; numbers have six digits."""

    def number(value: Any) -> Any:
        match value:
            case float():
                return float(f"{value:.6g}")
            case dict():
                return {key: number(item) for key, item in value.items()}
            case list():
                return [number(item) for item in value]
            case _:
                return value

    for outcome in JournalReader(path).outcomes("mixnet"):
        errors = {
            "errors",
            "links",
            "lateness",
            "dark_time",
            "cpu_idle",
        }  # errors of these exact times are rounding errors
        yield number(outcome.model_dump(mode="json", exclude={"measured": errors}))


def test_refused_run_leaves_the_journal_of_the_run_under_way(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, 3)
        before = path.read_bytes()
        second = journalled(tmp_path / "run.json", None)
        assert second.__enter__() == path
        with pytest.raises(JournalInUseError) as refusal:
            Journal(path)
        assert not second.__exit__(JournalInUseError, refusal.value, None)
        assert path.read_bytes() == before
        assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("is_running", [True, False])
def test_run_that_is_refused_before_its_journal_is_open_touches_no_file(
    tmp_path: Path, *, is_running: bool
) -> None:
    """As `run --resume` of another experiment, while the first run goes on or after it."""
    path, result = tmp_path / "run.jsonl", tmp_path / "run.json"
    lab = RecordedRun(path)
    result.write_text("of an earlier run")
    with ExitStack() as first:
        journal = first.enter_context(Journal(path))
        lab.begin(journal, 3)
        lab.run(journal, 1)
        if not is_running:
            first.close()
        refused = SpecError([("experiment.seed", "differs from the run that was stopped")])
        second = journalled(result, tmp_path / "page.html")
        second.__enter__()
        if is_running:
            lab.run(journal, 1)  # meanwhile
        before = path.read_bytes()
        assert not second.__exit__(SpecError, refused, None)
        assert path.read_bytes() == before
    assert result.read_text() == "of an earlier run"
    assert {file.name for file in tmp_path.iterdir()} == {"run.jsonl", "run.json"}


def test_interrupted_run_writes_the_result_of_its_own_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, result = tmp_path / "run.jsonl", tmp_path / "run.json"
    recorded(path, 1)
    run = journalled(result, None, "train")
    run.__enter__()
    recorded(path, 2, planned=5)
    assert not run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert '"incomplete"' in result.read_text()
    assert "`moefabric train --resume` goes on" in capsys.readouterr().err


@pytest.mark.parametrize("stopped_after", [1, 2, 5])
def test_run_that_goes_on_yields_the_iterations_of_an_uninterrupted_one(
    tmp_path: Path, stopped_after: int
) -> None:
    """Plans, predictions, circuits and times: a policy starts from the circuits that it had."""
    whole, path = tmp_path / "whole.jsonl", tmp_path / "run.jsonl"
    recorded(whole, 6)
    recorded(path, stopped_after, planned=6)
    path.write_bytes(path.read_bytes() + b'{"type":"iteration","fab')
    earlier = JournalReader(path)
    *_, last = earlier.outcomes("mixnet")
    lab = RecordedRun(path)
    with Journal(path, earlier.size) as journal:
        left = 6 - stopped_after
        circuits = CircuitSet.of(map("~".join, last.circuits))
        lab.run(journal, left, first=stopped_after, circuits=circuits)
    assert list(rounded(path)) == list(rounded(whole))


@dataclass
class InjectedFailure:
    """A failure monitor with one failure of a port, from an iteration until the next one."""

    first: int
    windows: Sequence[IterationWindow] = ()

    def has_failures(self) -> bool:
        return True

    def failures_during(
        self, windows: Sequence[IterationWindow], clock: SkippingClock
    ) -> RunFailures:
        self.windows = tuple(windows)
        return self.all_failures()

    def all_failures(self) -> RunFailures:
        by_number = {window.number: window for window in self.windows}
        if self.first not in by_number:
            return RunFailures((), tuple(self.windows))
        at_ns = by_number[self.first].start_ns + 50_000_000
        later = by_number.get(self.first + 1)
        record = FailureRecord(
            FailureKind.OCS_PORT,
            ("s0/o0",),
            at_ns,
            at_ns + 1_000_000,
            at_ns + 2_000_000,
            later.start_ns + 60_000_000 if later else None,
        )
        return RunFailures((record,), tuple(self.windows))


@pytest.mark.parametrize("is_failed", [False, True], ids=["sound", "after-a-failure"])
def test_memory_of_a_run_does_not_grow_with_its_iterations(tmp_path: Path, is_failed: bool) -> None:
    """A record of an iteration takes 30 KB; 200 bytes of its times and errors stay."""
    path = tmp_path / "run.jsonl"
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, 60)
        lab.run(journal, 5)
        gc.collect()
        tracemalloc.start()
        try:
            few = traced_bytes_after(lab, journal, 10, is_failed=is_failed)
            many = traced_bytes_after(lab, journal, 50, is_failed=is_failed)
        finally:
            tracemalloc.stop()
    assert (many - few) / 40 < 1500


def traced_bytes_after(
    lab: RecordedRun, journal: Journal, iterations: int, *, is_failed: bool
) -> int:
    """Return what is allocated at the end of a run, while its records are still held."""
    allocated = list[int]()

    def measure(outcome: IterationOutcome) -> None:
        if outcome.result.iteration == iterations - 1:
            gc.collect()
            allocated.append(tracemalloc.get_traced_memory()[0])

    monitor = InjectedFailure(first=1) if is_failed else None
    lab.run(journal, iterations, monitor=monitor, on_outcome=measure)
    return allocated[0]


def test_outcomes_during_failures_are_those_of_whole_records(tmp_path: Path) -> None:
    """What a failure disturbed is known when it is over; records are forgotten then."""
    path, faults = tmp_path / "run.jsonl", InjectedFailure(first=2)
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, 8)
        recorder = lab.run(journal, 8, monitor=faults)
    assert recorder.failed == []
    assert [run.number for run in recorder.shown] == [2]
    whole = RecordedRun(path, keep=True)
    with Journal(tmp_path / "unused.jsonl") as unused:
        runs = whole.run(unused, 8).runs
    expected = outcomes_of(whole.fabric, runs, faults.all_failures())
    found = list(JournalReader(path).outcomes("mixnet"))
    disturbed = [[one.failures for one in outcome.collectives] for outcome in found]
    assert disturbed == [[one.failures for one in outcome.collectives] for outcome in expected]
    assert [number for number, lists in enumerate(disturbed) if any(lists)] == [2, 3]
    assert [one.measured.judged for one in found] == [one.measured.judged for one in expected]


def test_activities_of_further_failures_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moefabric.execution.fabric_recorder.MOST_SHOWN", 0)
    path, faults = tmp_path / "run.jsonl", InjectedFailure(first=2)
    lab = RecordedRun(path)
    with Journal(path) as journal:
        lab.begin(journal, 6)
        recorder = lab.run(journal, 6, monitor=faults)
    assert recorder.shown == []


def test_errors_of_a_file_without_a_name_show_its_place(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=rf"^{tmp_path}: No such file or directory"):
        Journal(tmp_path / "none" / "run.jsonl", shown=tmp_path)


def test_run_goes_on_with_the_files_of_the_stopped_run_only(tmp_path: Path) -> None:
    def header(trace: str, seed: int = 1, code: str = "mine.py") -> HeaderLine:
        digests = {"gating.trace": trace, "experiment": str(seed)}
        inputs = [InputDigest(key=key, file="f", sha256=d) for key, d in digests.items()]
        inputs.append(InputDigest(key="code mine", file=code, sha256="c"))
        header = RecordedRun(tmp_path / "run.jsonl").header
        manifest = header.manifest.model_copy(update={"inputs": inputs})
        return header.model_copy(update={"manifest": manifest, "spec": {"seed": seed}})

    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(header("a"))
    reader = resumable(path, header("a"))
    assert reader is not None
    assert reader.header == header("a")
    assert refusal(path, header("b")) == ["inputs.gating.trace: differs (f a there, f b here)"]
    assert refusal(path, header("a", code="mine.py of mine 2")) == [
        "inputs.code mine: differs (mine.py c there, mine.py of mine 2 c here)"
    ]
    assert refusal(path, header("a", seed=2)) == ["experiment.seed: differs (1 there, 2 here)"]


def refusal(path: Path, header: HeaderLine) -> list[str]:
    """Return what differs from a journal, of an error that names it and the remedy."""
    with pytest.raises(SpecError) as caught:
        resumable(path, header)
    *lines, remedy = str(caught.value).splitlines()
    assert remedy == f"{path}: undo the change, or begin anew: another --json, without --resume"
    assert all(line.startswith(f"{path}: ") for line in lines)
    texts = (line.removeprefix(f"{path}: ") for line in lines)
    return [text.replace(" from the run that was stopped", "") for text in texts]


def test_only_the_fields_that_differ_are_named(tmp_path: Path) -> None:
    def header(dilation: float, *policies: str) -> HeaderLine:
        header = RecordedRun(tmp_path / "run.jsonl").header
        scale = ScaleFactors(bytes=2.0, dilation=dilation, frame_s=0.0)
        fabrics = [{"name": "a", "policy": policy} for policy in policies]
        manifest = header.manifest.model_copy(update={"scale": scale})
        return header.model_copy(update={"manifest": manifest, "spec": {"fabrics": fabrics}})

    path = tmp_path / "run.jsonl"
    with Journal(path) as journal:
        journal.append(header(3.0, "eps", "joint"))
    assert refusal(path, header(4.0, "eps", "mixnet")) == [
        "experiment.fabrics[1].policy: differs (joint there, mixnet here)",
        "scale.dilation: differs (3.0 there, 4.0 here)",
    ]
    (longer,) = refusal(path, header(3.0, "eps"))
    assert longer.startswith("experiment.fabrics: differs ([{")


@pytest.mark.parametrize("begun", [b"", b'{"type":"run","run_id"'], ids=["empty", "cut off"])
def test_run_that_stopped_before_its_header_begins_anew(tmp_path: Path, begun: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(begun)
    header = RecordedRun(tmp_path / "other.jsonl").header
    assert resumable(path, header) is None
    with Journal(path) as journal:
        journal.append(header)
    assert resumable(path, header) is not None
