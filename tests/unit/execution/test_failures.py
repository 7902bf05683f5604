"""Failure records, the failure log, and the schedule of injections.

Failures in experiments; the instants at which they are record to happen.
"""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import (
    ControllerFailureMode,
    Failure,
    FailureEvent,
    FailurePhase,
    FailureRecord,
    IterationWindow,
    PlannedFailure,
    failure_records,
    healthy_windows,
)
from moefabric.core.units import Scale
from moefabric.execution.clock import LONGEST_WAIT_NS, SkippingClock
from moefabric.execution.failure_monitor import FailureInjector
from moefabric.results.parts import FailureResult
from moefabric.results.records.records import IterationRun, RunFailures, Span
from moefabric.results.verdict.failure_results import failure_results
from moefabric.runtime.failure_log import (
    FAILURE_LOG,
    append_failure_event,
    end_remedy,
    read_failure_log,
)
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.testbed.failure_injection import inject, logged_failures
from tests.support.fabrics import fabric
from tests.support.memory_testbed import ImmediateExecutor, VirtualClock
from tests.support.paths import EXAMPLES

S = 1_000_000_000
MS = 1_000_000
EXAMPLE = EXAMPLES / "failures.yaml"


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, in bytes: as on a full file system, write(2) fails beyond it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def seen(
    at_s: float, phase: FailurePhase, what: str, kind: str = "nic", why: str = ""
) -> FailureEvent:
    return FailureEvent(round(at_s * S), phase, FailureKind(kind), tuple(what.split()), why)


def test_failure_record_has_the_events_until_the_next_injection() -> None:
    first, other, second = failure_records(
        [
            seen(1, "inject", "s0/e0"),
            seen(2, "inject", "s1/e0"),
            seen(3, "detected", "s0/e0", "electrical-nic", "its controller"),
            seen(4, "recovered", "s0/e0", "electrical-nic", "s0 sends by s0/e1"),
            seen(5, "clear", "s0/e0"),
            seen(6, "inject", "s0/e0"),
            seen(7, "detected", "s0/e0", "electrical-nic"),
        ]
    )
    assert first == FailureRecord(
        FailureKind.NIC, ("s0/e0",), S, 3 * S, 4 * S, 5 * S, "its controller", "s0 sends by s0/e1"
    )
    assert other == FailureRecord(FailureKind.NIC, ("s1/e0",), 2 * S)
    assert (second.injected_ns, second.detected_ns, second.recovered_ns) == (6 * S, 7 * S, None)


def test_light_that_nobody_took_is_a_failure_since_it_was_seen_last() -> None:
    circuit = ("s0/o0~s1/o0",)
    events = [
        FailureEvent(10, "lost", FailureKind.LIGHT, circuit, "no frame passes it"),
        FailureEvent(12, "detected", FailureKind.LIGHT, circuit, "its region's controller"),
        FailureEvent(13, "recovered", FailureKind.LIGHT, circuit, "its pair is on the EPS"),
        FailureEvent(20, "clear", FailureKind.LIGHT, circuit, "lit again"),
        FailureEvent(30, "lost", FailureKind.LIGHT, circuit, "no frame passes it"),
    ]
    first, second = failure_records(events)
    assert (first.injected_ns, first.detected_ns, first.recovered_ns, first.cleared_ns) == (
        10, 12, 13, 20,
    )  # fmt: skip
    assert first.detected_by == "its region's controller"
    assert first.action == "its pair is on the EPS"
    assert (second.injected_ns, second.detected_ns, second.cleared_ns) == (30, None, None)


@pytest.mark.parametrize(
    ("notes", "detected_s", "recovered_s"),
    [
        pytest.param([], None, None, id="nobody-saw-it"),
        pytest.param(
            [
                seen(2, "detected", "a"),
                seen(3, "detected", "b"),
                seen(4, "recovered", "b"),
                seen(5, "recovered", "a"),
            ],
            2,
            5,
            id="the-first-detects-the-last-recovers",
        ),
        pytest.param(
            [seen(2, "detected", "a"), seen(4, "recovered", "b")],
            2,
            None,
            id="one-of-two-is-not-enough",
        ),
        pytest.param(
            [seen(2, "detected", "c"), seen(3, "recovered", "a b", "gpu")],
            None,
            None,
            id="others-dont-count",
        ),
        pytest.param(
            [seen(3, "clear", "a b"), seen(4, "detected", "a")],
            None,
            None,
            id="nor-what-comes-after-mending",
        ),
    ],
)
def test_failure_of_several_components_recovers_with_the_last(
    notes: list[FailureEvent], detected_s: int | None, recovered_s: int | None
) -> None:
    [record] = failure_records([seen(1, "inject", "a b"), *notes])
    assert record.detected_ns == (detected_s and detected_s * S)
    assert record.recovered_ns == (recovered_s and recovered_s * S)


def test_server_that_lost_all_nics_recovers_as_a_whole() -> None:
    [record] = failure_records(
        [
            seen(1, "inject", "s2/o0 s2/e0"),
            seen(2, "detected", "s2", "server"),
            seen(3, "recovered", "s2", "server", "s2 by s4"),
        ]
    )
    assert (record.detected_ns, record.recovered_ns, record.action) == (2 * S, 3 * S, "s2 by s4")


WINDOWS = [
    IterationWindow(number, 10 * number * S, (10 * number + 9) * S, 9.0) for number in range(6)
]


@pytest.mark.parametrize(
    ("failure", "calm"),
    [
        pytest.param(
            FailureRecord(FailureKind.NIC, ("s0/e0",), 15 * S, 16 * S, 16 * S, 30 * S),
            [0, 4, 5],
            id="until-mended",
        ),
        pytest.param(
            FailureRecord(FailureKind.SERVER, ("s3",), 15 * S, 16 * S, 16 * S),
            [0],
            id="never-mended",
        ),
        pytest.param(
            FailureRecord(FailureKind.CONTROLLER, ("r0",), 15 * S, 16 * S, 17 * S),
            [0, 2, 3, 4, 5],
            id="mends-itself",
        ),
        pytest.param(
            FailureRecord(FailureKind.CONTROLLER, ("r0",), 15 * S, 16 * S, 17 * S, 41 * S),
            [0, 5],
            id="stopped",
        ),
    ],
)
def test_healthy_windows_exclude_failure_and_clearing(
    failure: FailureRecord, calm: list[int]
) -> None:
    assert [window.number for window in healthy_windows([failure], WINDOWS)] == calm


@pytest.mark.parametrize(
    ("failure", "anew", "felt"),
    [
        pytest.param(
            FailureRecord(FailureKind.NIC, ("s0/e0",), 10 * S, 11 * S, 12 * S, 45 * S),
            True,
            [1, 2, 3, 4],
            id="nobody-plans-with-a-nic-less",
        ),
        pytest.param(
            FailureRecord(FailureKind.NIC, ("s0/o0",), 10 * S, 11 * S, 12 * S, 45 * S),
            True,
            [1, 4],
            id="light-is-planned-anew",
        ),
        pytest.param(
            FailureRecord(FailureKind.NIC, ("s0/o0",), 10 * S, 11 * S, 14 * S, 45 * S),
            True,
            [1, 2, 4],
            id="when-it-is-planned-next",
        ),
        pytest.param(
            FailureRecord(FailureKind.OCS, ("ocs0",), 10 * S, 11 * S, 12 * S, 45 * S),
            False,
            [1, 2, 3, 4],
            id="or-never",
        ),
        pytest.param(
            FailureRecord(FailureKind.SERVER, ("s3",), 10 * S, 11 * S, 12 * S),
            True,
            [1],
            id="a-server-is-replaced",
        ),
        pytest.param(
            FailureRecord(FailureKind.SERVER, ("s3",), 10 * S, 11 * S, 12 * S, 41 * S),
            True,
            [1, 4],
            id="and-comes-back",
        ),
        pytest.param(
            FailureRecord(FailureKind.OCS, ("ocs0",), 10 * S),
            True,
            [1, 2, 3, 4, 5],
            id="never-recovered",
        ),
    ],
)
def test_failure_disturbs_collectives_that_were_not_planned_for_it(
    failure: FailureRecord, anew: bool, felt: list[int]
) -> None:
    spans = [(10 * n * S + S // 2, (10 * n + 9) * S) for n in range(6)]
    planned = [1 * S, 13 * S, 25 * S, 47 * S, 55 * S] if anew else []
    assert [
        n for n, (start, end) in enumerate(spans) if failure.disturbs(start, end, planned)
    ] == felt


def test_reopened_connections_are_slow_once() -> None:
    lost, nic = (
        FailureRecord(kind, ("s3",), 10 * S, 11 * S, 12 * S)
        for kind in (FailureKind.SERVER, FailureKind.OCS)
    )
    spans = [(13 * S, 15 * S), (15 * S, 17 * S)]
    assert [lost.disturbs(*span, reopened_ns=[5 * S, 15 * S]) for span in spans] == [True, False]
    assert [nic.disturbs(*span, [12 * S], [15 * S]) for span in spans] == [False, False]


def converted(failure: FailureRecord, windows: Sequence[IterationWindow]) -> FailureResult:
    """Return the result of a failure in iterations whose records are gone."""
    [result] = failure_results(fabric(), RunFailures((failure,), tuple(windows)), [])
    return result


def test_slow_down_is_relative_to_the_median_of_healthy_iterations() -> None:
    windows = [
        IterationWindow(n, 10 * n * S, (10 * n + 9) * S, t)
        for n, t in enumerate([10.0, 13.0, 11.0, 12.0, 10.0])
    ]
    failure = FailureRecord(FailureKind.NIC, ("s0/e0",), 15 * S, 16 * S, 17 * S, 30 * S)
    result = converted(failure, windows)
    assert result.iteration == 1
    instants_s = result.injected_s, result.detected_s, result.recovered_s, result.cleared_s
    assert instants_s == (5.0, 1.0, 2.0, 15.0)
    assert result.slow_down == pytest.approx(0.3)
    assert result.slow_down_after == pytest.approx(0.1), "iteration 2; it is mended when 3 begins"
    assert result.ok is True


@pytest.mark.parametrize(
    ("failed", "shown"),
    [
        pytest.param(("s1/e0", "s2/o1"), ["s1", "s2", "s4"], id="servers of NICs"),
        pytest.param(("leaf0",), ["s0", "s4"], id="the first server for a switch"),
    ],
)
def test_timeline_of_a_failure_shows_failed_and_backup_servers(
    failed: tuple[str, ...], shown: list[str]
) -> None:
    region, spare = fabric(regions=(4, 1)).regions
    wired = replace(fabric(regions=(4, 1)), regions=(region, replace(spare, backup=True)))
    spans = [Span(server, "expert", "forward", 0, 2 * S, 4 * S) for server in wired.servers]
    windows = (IterationWindow(0, S, 9 * S, 8.0),)
    failure = FailureRecord(FailureKind.NIC, failed, 3 * S)
    run = IterationRun(0, S, 9 * S, spans=spans)
    [result] = failure_results(wired, RunFailures((failure,), windows), [run])
    assert [lane.server for lane in result.lanes] == shown
    assert {(lane.start_s, lane.end_s) for lane in result.lanes} == {(1.0, 3.0)}


def test_slow_down_is_absent_without_healthy_iterations() -> None:
    result = converted(FailureRecord(FailureKind.NIC, ("s0/e0",), 0), WINDOWS)
    assert (result.slow_down, result.slow_down_after, result.ok) == (None, None, False)


def test_failure_log_keeps_events_of_all_writers(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    assert read_failure_log(run_dir) == []
    late = append_failure_event(run_dir, "detected", "gpu", ["s1/3"], "it said so")
    early = append_failure_event(run_dir, "inject", "gpu", ["s1/3"], at_ns=5)
    assert read_failure_log(run_dir) == [early, late]
    assert (early.at_ns, late.why) == (5, "it said so")


def test_unfinished_line_of_the_failure_log_is_left_out(tmp_path: Path) -> None:
    whole = append_failure_event(RunDirectory(tmp_path), "inject", "gpu", ["s1/3"], at_ns=5)
    with (tmp_path / FAILURE_LOG).open("a") as log:
        log.write('{"at_ns": 6, "do": "det')
    assert read_failure_log(RunDirectory(tmp_path)) == [whole]


def test_invalid_lines_of_the_failure_log_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = RunDirectory(tmp_path)
    first = append_failure_event(run_dir, "inject", "gpu", ["s1/3"], at_ns=5)
    with (tmp_path / FAILURE_LOG).open("ab") as log:
        log.write(b'{"at_ns": 6, "do": "det{"at_ns": 7}\n[]\n\xff\n')
    last = append_failure_event(run_dir, "clear", "gpu", ["s1/3"], at_ns=8)
    assert read_failure_log(run_dir) == [first, last]
    assert "skipped 3 lines that are no events" in caplog.text


def test_failure_event_on_a_full_disk_leaves_no_half_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = RunDirectory(tmp_path)
    first = append_failure_event(run_dir, "inject", "gpu", ["s1/3"], at_ns=5)
    room = (tmp_path / FAILURE_LOG).stat().st_size + 10
    with limited_file_size(room):
        append_failure_event(run_dir, "clear", "gpu", ["s1/3"], at_ns=6)
    assert "not written: File too large" in caplog.text
    last = append_failure_event(run_dir, "clear", "gpu", ["s1/3"], at_ns=7)
    assert read_failure_log(run_dir) == [first, last]


@pytest.mark.parametrize(
    ("name", "said", "sharing"),
    [
        pytest.param("sleeping", "is no controller", "r0", id="somebody-elses-number"),
        pytest.param("moefabric.controller", "", "r0", id="a-controller's"),
        pytest.param("moefabric.controller", "", "r0 r1", id="two-controllers'"),
    ],
)
def test_inject_signals_controllers_only(
    tmp_path: Path, name: str, said: str, sharing: str
) -> None:
    """A number that another container wrote is somebody else's here."""
    run_dir, wired = (
        RunDirectory(tmp_path),
        FabricWiring(
            fabric(regions=(2, 2, 2)),
            ManagementNetwork("198.18.0.0/24"),
            region_processes=2 if " " in sharing else 0,
        ),
    )
    run_dir.wiring_file.write_text(wired.to_json())
    program = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    program.parent.mkdir(exist_ok=True)
    if program.parent != tmp_path:
        (program.parent / "__init__.py").touch()
    program.write_text("import sys; print(flush=True); sys.stdin.read()")
    file = run_dir.controller_pid_file(wired.fabric.regions[0])
    file.parent.mkdir()
    told = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", name], cwd=tmp_path, stdin=told, stdout=told
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line can be read from now on
        file.write_text(f"{process.pid}\n")
        try:
            if said:
                with pytest.raises(FabricError, match=said):
                    inject(run_dir, Failure(FailureKind.CONTROLLER, ("r0",)))
                assert process.poll() is None
            else:
                hit = inject(run_dir, Failure(FailureKind.CONTROLLER, ("r0",)))
                assert process.wait(30) < 0
                assert hit.what == tuple(sharing.split())
                [event] = read_failure_log(run_dir)
                assert event.what == hit.what
        finally:
            process.kill()


def test_controllers_whose_process_ended_are_named_with_the_remedy(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path / "lab")
    run_dir.path.mkdir()
    wiring = FabricWiring(fabric(), ManagementNetwork("198.18.0.0/24"))
    run_dir.wiring_file.write_text(wiring.to_json())
    kill = partial(inject, run_dir, Failure(FailureKind.CONTROLLER, ("r0",)))
    with pytest.raises(FabricError, match="where controllers run in another container"):
        kill()
    ends = FailureKind.PROCESS, ["controllers"]
    append_failure_event(run_dir, "lost", *ends, "ended (signal 9)")
    with pytest.raises(
        FabricError, match=r"; lab: controllers ended \(signal 9\); it starts again"
    ):
        kill()
    append_failure_event(run_dir, "lost", FailureKind.PROCESS, ["switches"], "ended (signal 9)")
    append_failure_event(run_dir, "clear", *ends)
    remedy = "`moefabric up` with the file of lab makes the fabric anew"
    assert end_remedy(run_dir) == f"lab: switches ended (signal 9); {remedy}"


class Bench:
    """A schedule of failures, with what it injects and clears on a clock."""

    def __init__(self, *planned: PlannedFailure) -> None:
        self.clock = VirtualClock()
        self.did: list[tuple[int, str]] = []
        self.injector = FailureInjector(
            planned,
            lambda failure: self.did.append((self.clock.now_ns() // MS, f"break {failure}")),
            lambda failure: self.did.append((self.clock.now_ns() // MS, f"mend {failure}")),
            self.clock,
            Scale(100, 2),
            ImmediateExecutor(),
        )


NIC, GPU = Failure(FailureKind.NIC, ("s0/e0",)), Failure(FailureKind.GPU, ("s1/3",))


def test_schedule_injects_each_failure_once_at_its_instant() -> None:
    bench = Bench(PlannedFailure(NIC, 1, 1, 5 * MS, clear=2), PlannedFailure(GPU, 1))
    bench.injector.iteration_began(0)
    bench.injector.collective_began(0)
    bench.injector.collective_began(0)
    bench.injector.iteration_began(1)
    assert bench.did == [(0, "break gpu s1/3")]
    bench.injector.collective_began(100 * MS)
    bench.injector.collective_began(200 * MS)
    assert bench.did[1:] == [(210, "break nic s0/e0")], "5 ms of the model are 10 here"
    bench.injector.collective_began(300 * MS)
    bench.injector.iteration_began(2)
    bench.injector.collective_began(400 * MS)
    bench.injector.collective_began(400 * MS)
    assert bench.did[2:] == [(210, "mend nic s0/e0")]
    bench.injector.close()
    assert bench.did[3:] == [(210, "mend gpu s1/3")], "nothing stays broken for the next"


def test_failed_injection_ends_the_run_at_the_next_iteration() -> None:
    bench = Bench(PlannedFailure(NIC, 0, 0))

    def refuse(failure: Failure) -> None:
        raise SpecError([("", f"{failure}: no")])

    bench.injector = FailureInjector(
        [PlannedFailure(NIC, 0, 0)], refuse, refuse, bench.clock, Scale(), ImmediateExecutor()
    )
    bench.injector.iteration_began(0)
    bench.injector.collective_began(0)
    with pytest.raises(SpecError, match="nic s0/e0: no"):
        bench.injector.iteration_began(1)


def test_failed_injection_does_not_keep_others_from_being_cleared() -> None:
    clock, mended = VirtualClock(), list[Failure]()

    def refuse_nics(failure: Failure) -> None:
        if failure == NIC:
            raise SpecError([("", f"{failure}: no")])

    def mend(failure: Failure) -> None:
        mended.append(failure)
        refuse_nics(failure)

    injector = FailureInjector(
        [PlannedFailure(NIC, 0, 0), PlannedFailure(GPU, 0)],
        refuse_nics,
        mend,
        clock,
        Scale(),
        ImmediateExecutor(),
    )
    injector.iteration_began(0)
    injector.collective_began(0)
    with pytest.raises(SpecError, match="nic s0/e0: no"):
        injector.close()
    assert set(mended) == {NIC, GPU}


def test_instants_convert_between_clocks_whatever_was_skipped() -> None:
    clock = SkippingClock(VirtualClock())
    clock.sleep_until(10 * S)
    skipped = 10 * S - LONGEST_WAIT_NS
    clock.sleep_until(clock.now_ns() + 10 * MS)
    assert clock.now_ns() == 10 * S + 10 * MS
    for wall, shown in (
        (0, 0),
        (LONGEST_WAIT_NS, 10 * S),
        (LONGEST_WAIT_NS + 10 * MS, 10 * S + 10 * MS),
    ):
        assert clock.past_run_ns(wall) == shown
        assert clock.past_wall_ns(shown) == wall
    assert clock.past_wall_ns(skipped // 2) == 0, (
        "an instant that was skipped was when it was skipped"
    )


@pytest.mark.parametrize(
    ("kind", "there", "not_there"),
    [
        pytest.param(FailureKind.NIC, "s0/e0", "s0/e1", id="nic"),
        pytest.param(FailureKind.NIC, "s3/o2", "s4/o0", id="optical-nic"),
        pytest.param(FailureKind.OCS_PORT, "s0/o0", "s0/e0", id="ocs-port"),
        pytest.param(FailureKind.OCS, "ocs0", "ocs1", id="ocs"),
        pytest.param(FailureKind.GPU, "s0/7", "s0/8", id="gpu"),
        pytest.param(FailureKind.SERVER, "s3", "s4", id="server"),
        pytest.param(FailureKind.CONTROLLER, "r0", "r1", id="controller"),
        pytest.param(FailureKind.CONTROLLER, "eps", "s0", id="the-eps-controller"),
    ],
)
def test_fabric_has_its_own_components_only(kind: FailureKind, there: str, not_there: str) -> None:
    assert kind.traits.has(fabric(), there)
    assert not kind.traits.has(fabric(), not_there)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param(
            "failures[0].iteration=99",
            "failures[0].iteration: 99 is none of the iterations 0 to 24",
            id="too-late",
        ),
        pytest.param(
            "failures[0].targets=[s0/e7]",
            "failures[0].targets: s0/e7: no fabric here has such a nic",
            id="unknown",
        ),
        pytest.param(
            "failures[0].clear.iteration=2",
            "failures[0].clear.iteration: 2 is not after iteration 2",
            id="mended-before",
        ),
        pytest.param(
            "failures[0].mode=stop",
            "failures[0].mode: only controllers can be stopped: leave mode out for a nic",
            id="stopped-nic",
        ),
        pytest.param(
            "failures[7].clear={iteration: 21}",
            "failures[7].clear: a killed controller is started again at once: leave clear out",
            id="cleared-kill",
        ),
        pytest.param(
            "failures[0].fabrics=[nowhere]",
            "failures[0].fabrics: nowhere: not a fabric here; there are mixnet",
            id="unknown-fabric",
        ),
        pytest.param(
            "wiring.backup=null",
            "failures[5].kind: nothing can replace it: give wiring.backup: {servers: 1}",
            id="no-backup",
        ),
    ],
)
def test_wrong_failures_are_reported_with_their_place(setting: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        load_experiment(EXAMPLE, [setting])
    assert said in [f"{place.split(': ')[-1]}: {what}" for place, what in error.value.errors]


def test_stopped_controller_names_its_mode() -> None:
    spec = load_experiment(EXAMPLE)
    assert spec.failures[8].build() == PlannedFailure(
        Failure(FailureKind.CONTROLLER, ("r0",), ControllerFailureMode.STOP), 21, 1, 5 * MS, 22
    )


def test_logged_failures_stay_until_they_are_cleared(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    append_failure_event(run_dir, "inject", "gpu", ["s1/3", "s2/0"])
    append_failure_event(run_dir, "clear", "gpu", ["s1/3"])
    append_failure_event(run_dir, "inject", "controller", ["r0"], "stopped")
    append_failure_event(run_dir, "inject", "controller", ["r1"])
    append_failure_event(run_dir, "inject", "nic", ["s0/e0"])
    assert [str(one) for one in logged_failures(run_dir)] == ["gpu s2/0", "controller r0 (stopped)"]
    append_failure_event(run_dir, "clear", "controller", ["r0"])
    assert [str(one) for one in logged_failures(run_dir)] == ["gpu s2/0"]


def test_controller_that_was_started_again_is_not_stopped_any_more(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    append_failure_event(run_dir, "inject", "controller", ["r0", "r1"], "stopped")
    append_failure_event(run_dir, "detected", "controller", ["r0"], "it has not answered /health")
    assert [str(one) for one in logged_failures(run_dir)] == ["controller r0 r1 (stopped)"]
    append_failure_event(run_dir, "recovered", "controller", ["r0"], "started again")
    assert [str(one) for one in logged_failures(run_dir)] == ["controller r1 (stopped)"]
    append_failure_event(run_dir, "inject", "gpu", ["s1/3"])
    append_failure_event(run_dir, "recovered", "gpu", ["s1/3"], "the job goes on without it")
    shown = ["gpu s1/3", "controller r1 (stopped)"]
    assert [str(one) for one in logged_failures(run_dir)] == shown


@pytest.mark.parametrize("schedule", ["lockstep", "independent"])
def test_losses_and_failures_in_collectives_are_allowed_under_either_schedule(
    schedule: str,
) -> None:
    spec = load_experiment(EXAMPLE, [f"training.schedule={schedule}"])
    planned = [failure.build() for failure in spec.failures]
    assert {FailureKind.GPU, FailureKind.SERVER} <= {each.failure.kind for each in planned}
    assert any(each.collective is not None for each in planned)
