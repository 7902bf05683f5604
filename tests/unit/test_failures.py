"""What came of failures, from the notes of all who saw something; failures in experiments; the instants at which they are made to happen."""

import subprocess
import sys
from pathlib import Path

import pytest

from moefabric.errors import FabricError, SpecError
from moefabric.experiment.breaking import break_, standing
from moefabric.experiment.clock import LONGEST_WAIT_NS, SkippingClock
from moefabric.experiment.injecting import Injector
from moefabric.experiment.memory import AtOnce, VirtualClock
from moefabric.failure_log import FILE, Do, Note, note, read
from moefabric.failures import Failure, How, Kind, Planned, Told, Window, has, healthy, to_json, told
from moefabric.management import Management, RunDir, Wiring
from moefabric.spec import load
from moefabric.topology import Scale
from tests.fabrics import fabric

S = 1_000_000_000
MS = 1_000_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "failures.yaml"


def seen(at_s: float, do: Do, what: str, kind: str = "nic", why: str = "") -> Note:
    return Note(round(at_s * S), do, kind, tuple(what.split()), why)


def test_a_failures_notes_are_those_about_the_same_thing_until_it_breaks_again() -> None:
    first, other, second = told(
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
    assert first == Told("nic", ("s0/e0",), S, 3 * S, 4 * S, 5 * S, "its controller", "s0 sends by s0/e1")
    assert other == Told("nic", ("s1/e0",), 2 * S)
    assert (second.injected_ns, second.detected_ns, second.recovered_ns) == (6 * S, 7 * S, None)


@pytest.mark.parametrize(
    ("notes", "detected_s", "recovered_s"),
    [
        pytest.param([], None, None, id="nobody-saw-it"),
        pytest.param(
            [seen(2, "detected", "a"), seen(3, "detected", "b"), seen(4, "recovered", "b"), seen(5, "recovered", "a")],
            2, 5, id="the-first-detects-the-last-recovers",
        ),
        pytest.param([seen(2, "detected", "a"), seen(4, "recovered", "b")], 2, None, id="one-of-two-is-not-enough"),
        pytest.param([seen(2, "detected", "c"), seen(3, "recovered", "a b", "gpu")], None, None, id="others-dont-count"),
        pytest.param([seen(3, "clear", "a b"), seen(4, "detected", "a")], None, None, id="nor-what-comes-after-mending"),
    ],
)  # fmt: skip
def test_of_several_things_that_break_at_once_all_have_to_recover(
    notes: list[Note], detected_s: int | None, recovered_s: int | None
) -> None:
    [made] = told([seen(1, "inject", "a b"), *notes])
    assert made.detected_ns == (detected_s and detected_s * S)
    assert made.recovered_ns == (recovered_s and recovered_s * S)


def test_a_server_that_lost_all_its_nics_is_recovered_as_a_whole() -> None:
    [made] = told(
        [
            seen(1, "inject", "s2/o0 s2/e0"),
            seen(2, "detected", "s2", "server"),
            seen(3, "recovered", "s2", "server", "s2 by s4"),
        ]
    )
    assert (made.detected_ns, made.recovered_ns, made.action) == (2 * S, 3 * S, "s2 by s4")


WINDOWS = [Window(number, 10 * number * S, (10 * number + 9) * S, 9.0) for number in range(6)]


@pytest.mark.parametrize(
    ("failure", "calm"),
    [
        pytest.param(Told("nic", ("s0/e0",), 15 * S, 16 * S, 16 * S, 30 * S), [0, 4, 5], id="until-mended"),
        pytest.param(Told("server", ("s3",), 15 * S, 16 * S, 16 * S), [0], id="never-mended"),
        pytest.param(Told("controller", ("r0",), 15 * S, 16 * S, 17 * S), [0, 2, 3, 4, 5], id="mends-itself"),
        pytest.param(Told("controller", ("r0",), 15 * S, 16 * S, 17 * S, 41 * S), [0, 5], id="stopped"),
    ],
)
def test_iterations_are_healthy_before_it_breaks_and_when_it_is_mended(
    failure: Told, calm: list[int]
) -> None:
    assert [window.number for window in healthy([failure], WINDOWS)] == calm


@pytest.mark.parametrize(
    ("failure", "anew", "felt"),
    [
        pytest.param(Told("nic", ("s0/e0",), 10 * S, 11 * S, 12 * S, 45 * S), True, [1, 2, 3, 4], id="nobody-plans-with-a-nic-less"),
        pytest.param(Told("nic", ("s0/o0",), 10 * S, 11 * S, 12 * S, 45 * S), True, [1, 4], id="light-is-planned-anew"),
        pytest.param(Told("nic", ("s0/o0",), 10 * S, 11 * S, 14 * S, 45 * S), True, [1, 2, 4], id="when-it-is-planned-next"),
        pytest.param(Told("ocs", ("ocs0",), 10 * S, 11 * S, 12 * S, 45 * S), False, [1, 2, 3, 4], id="or-never"),
        pytest.param(Told("server", ("s3",), 10 * S, 11 * S, 12 * S), True, [1], id="a-server-is-replaced"),
        pytest.param(Told("server", ("s3",), 10 * S, 11 * S, 12 * S, 41 * S), True, [1, 4], id="and-comes-back"),
        pytest.param(Told("ocs", ("ocs0",), 10 * S), True, [1, 2, 3, 4, 5], id="never-recovered"),
    ],
)  # fmt: skip
def test_collectives_feel_what_was_not_planned_for(failure: Told, anew: bool, felt: list[int]) -> None:
    spans = [(10 * n * S + S // 2, (10 * n + 9) * S) for n in range(6)]
    planned = [1 * S, 13 * S, 25 * S, 47 * S, 55 * S] if anew else []
    assert [n for n, (start, end) in enumerate(spans) if failure.disturbs(start, end, planned)] == felt


def test_connections_that_were_opened_again_are_slow_once() -> None:
    lost, nic = (Told(kind, ("s3",), 10 * S, 11 * S, 12 * S) for kind in ("server", "ocs"))
    spans = [(13 * S, 15 * S), (15 * S, 17 * S)]
    assert [lost.disturbs(*span, reopened_ns=[5 * S, 15 * S]) for span in spans] == [True, False]
    assert [nic.disturbs(*span, [12 * S], [15 * S]) for span in spans] == [False, False]


def test_slow_downs_are_against_the_median_of_the_healthy() -> None:
    windows = [
        Window(n, 10 * n * S, (10 * n + 9) * S, t) for n, t in enumerate([10.0, 13.0, 11.0, 12.0, 10.0])
    ]
    [made] = to_json([Told("nic", ("s0/e0",), 15 * S, 16 * S, 17 * S, 30 * S)], windows)
    assert made["iteration"] == 1
    assert (made["injected_s"], made["detected_s"], made["recovered_s"], made["cleared_s"]) == (
        5.0,
        1.0,
        2.0,
        15.0,
    )
    assert made["slow_down"] == pytest.approx(0.3)
    assert made["slow_down_after"] == pytest.approx(0.1), "iteration 2; it is mended when 3 begins"
    assert made["ok"] is True


def test_nothing_to_compare_with_is_told_as_nothing() -> None:
    [made] = to_json([Told("nic", ("s0/e0",), 0)], WINDOWS)
    assert (made["slow_down"], made["slow_down_after"], made["ok"]) == (None, None, False)


def test_the_log_keeps_what_everyone_notes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert read(run_dir) == []
    late = note(run_dir, "detected", "gpu", ["s1/3"], "it said so")
    early = note(run_dir, "inject", "gpu", ["s1/3"], at_ns=5)
    assert read(run_dir) == [early, late]
    assert (early.at_ns, late.why) == (5, "it said so")


def test_a_note_that_is_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    whole = note(RunDir(tmp_path), "inject", "gpu", ["s1/3"], at_ns=5)
    with (tmp_path / FILE).open("a") as log:
        log.write('{"at_ns": 6, "do": "det')
    assert read(RunDir(tmp_path)) == [whole]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("sleeping", "is no controller", id="somebody-elses-number"),
        pytest.param("controller", "", id="a-controller's"),
    ],
)
def test_only_a_controller_is_ended_as_one(tmp_path: Path, name: str, said: str) -> None:
    """A number that another container wrote is somebody else's here."""
    run_dir, wired = RunDir(tmp_path), Wiring(fabric(), Management("198.18.0.0/24"))
    run_dir.wiring.write_text(wired.to_json())
    (tmp_path / f"{name}.py").write_text("import sys; print(flush=True); sys.stdin.read()")
    file = run_dir.controller(wired.fabric.regions[0])
    file.parent.mkdir()
    told = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", name], cwd=tmp_path, stdin=told, stdout=told) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line can be read from now on
        file.write_text(f"{process.pid}\n")
        try:
            if said:
                with pytest.raises(FabricError, match=said):
                    break_(run_dir, Failure(Kind.CONTROLLER, ("r0",)))
                assert process.poll() is None
            else:
                break_(run_dir, Failure(Kind.CONTROLLER, ("r0",)))
                assert process.wait(5) < 0
        finally:
            process.kill()


class Bench:
    """Two failures, and what is done about them on a clock: `nic s0/e0` in the second collective of iteration 1, `gpu s1/3` at the start of it."""

    def __init__(self, *planned: Planned) -> None:
        self.clock = VirtualClock()
        self.did: list[tuple[int, str]] = []
        self.injector = Injector(
            planned,
            lambda failure: self.did.append((self.clock.now_ns() // MS, f"break {failure}")),
            lambda failure: self.did.append((self.clock.now_ns() // MS, f"mend {failure}")),
            self.clock,
            Scale(100, 2),
            AtOnce(),
        )


NIC, GPU = Failure(Kind.NIC, ("s0/e0",)), Failure(Kind.GPU, ("s1/3",))


def test_what_is_planned_happens_at_its_instant_and_once() -> None:
    bench = Bench(Planned(NIC, 1, 1, 5 * MS, clear=2), Planned(GPU, 1))
    bench.injector.iteration(0)
    bench.injector.collective(0)
    bench.injector.collective(0)
    bench.injector.iteration(1)
    assert bench.did == [(0, "break gpu s1/3")]
    bench.injector.collective(100 * MS)
    bench.injector.collective(200 * MS)
    assert bench.did[1:] == [(210, "break nic s0/e0")], "5 ms of the model are 10 here"
    bench.injector.collective(300 * MS)
    bench.injector.iteration(2)
    bench.injector.collective(400 * MS)
    bench.injector.collective(400 * MS)
    assert bench.did[2:] == [(210, "mend nic s0/e0")]
    bench.injector.close()
    assert bench.did[3:] == [(210, "mend gpu s1/3")], "nothing stays broken for the next"


def test_what_can_not_be_broken_ends_the_run_at_the_next_iteration() -> None:
    bench = Bench(Planned(NIC, 0, 0))

    def refuse(failure: Failure) -> None:
        raise SpecError([("", f"{failure}: no")])

    bench.injector = Injector([Planned(NIC, 0, 0)], refuse, refuse, bench.clock, Scale(), AtOnce())
    bench.injector.iteration(0)
    bench.injector.collective(0)
    with pytest.raises(SpecError, match="nic s0/e0: no"):
        bench.injector.iteration(1)


def test_what_could_not_be_broken_keeps_nothing_else_from_being_mended() -> None:
    clock, mended = VirtualClock(), list[Failure]()

    def refuse_nics(failure: Failure) -> None:
        if failure == NIC:
            raise SpecError([("", f"{failure}: no")])

    def mend(failure: Failure) -> None:
        mended.append(failure)
        refuse_nics(failure)

    injector = Injector([Planned(NIC, 0, 0), Planned(GPU, 0)], refuse_nics, mend, clock, Scale(), AtOnce())
    injector.iteration(0)
    injector.collective(0)
    with pytest.raises(SpecError, match="nic s0/e0: no"):
        injector.close()
    assert set(mended) == {NIC, GPU}


def test_an_instant_is_found_on_both_clocks_whatever_was_skipped() -> None:
    clock = SkippingClock(VirtualClock())
    clock.sleep_until(10 * S)
    skipped = 10 * S - LONGEST_WAIT_NS
    clock.sleep_until(clock.now_ns() + 100 * MS)
    assert clock.now_ns() == 10 * S + 100 * MS
    for wall, shown in ((0, 0), (LONGEST_WAIT_NS, 10 * S), (LONGEST_WAIT_NS + 50 * MS, 10 * S + 50 * MS)):
        assert clock.was_ns(wall) == shown
        assert clock.wall_was_ns(shown) == wall
    assert clock.wall_was_ns(skipped // 2) == 0, "an instant that was skipped was when it was skipped"


@pytest.mark.parametrize(
    ("kind", "there", "not_there"),
    [
        pytest.param(Kind.NIC, "s0/e0", "s0/e1", id="nic"),
        pytest.param(Kind.NIC, "s3/o2", "s4/o0", id="optical-nic"),
        pytest.param(Kind.OCS_PORT, "s0/o0", "s0/e0", id="ocs-port"),
        pytest.param(Kind.OCS, "ocs0", "ocs1", id="ocs"),
        pytest.param(Kind.GPU, "s0/7", "s0/8", id="gpu"),
        pytest.param(Kind.SERVER, "s3", "s4", id="server"),
        pytest.param(Kind.CONTROLLER, "r0", "r1", id="controller"),
        pytest.param(Kind.CONTROLLER, "eps", "s0", id="the-eps-controller"),
    ],
)
def test_what_a_fabric_has_may_fail(kind: Kind, there: str, not_there: str) -> None:
    assert has(fabric(), kind, there)
    assert not has(fabric(), kind, not_there)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param("failures[0].iteration=99", "failures[0].iteration: 99: there are iterations 0 to 24", id="too-late"),
        pytest.param("failures[0].what=[s0/e7]", "failures[0].what: s0/e7: no fabric here has such a nic", id="unknown"),
        pytest.param("failures[0].clear.iteration=2", "failures[0].clear.iteration: 2 is not after iteration 2", id="mended-before"),
        pytest.param("failures[0].how=stop", "failures[0].how: a nic is not stopped, it fails", id="stopped-nic"),
        pytest.param("failures[7].clear={iteration: 21}", "failures[7].clear: a controller that was killed is started again at once: there is nothing to clear", id="cleared-kill"),
        pytest.param("failures[0].fabrics=[nowhere]", "failures[0].fabrics: nowhere: not a fabric here; there are mixnet", id="unknown-fabric"),
        pytest.param("wiring.backup=null", "failures[5].kind: nothing could take its place: give wiring.backup: {servers: 1}", id="no-backup"),
    ],
)  # fmt: skip
def test_wrong_failures_are_told_with_their_place(setting: str, said: str) -> None:
    with pytest.raises(SpecError) as told_of:
        load.experiment(EXAMPLE, [setting])
    assert said in [f"{place.split(': ')[-1]}: {what}" for place, what in told_of.value.faults]


def test_a_stopped_controller_is_told_as_such() -> None:
    spec = load.experiment(EXAMPLE)
    assert spec.failures[8].planned() == Planned(
        Failure(Kind.CONTROLLER, ("r0",), How.STOP), 21, 1, 5 * MS, 22
    )


def test_lost_gpus_and_stopped_controllers_stand_until_they_are_cleared(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    note(run_dir, "inject", "gpu", ["s1/3", "s2/0"])
    note(run_dir, "clear", "gpu", ["s1/3"])
    note(run_dir, "inject", "controller", ["r0"], "stopped")
    note(run_dir, "inject", "controller", ["r1"])
    note(run_dir, "inject", "nic", ["s0/e0"])
    assert [str(one) for one in standing(run_dir)] == ["gpu s2/0", "controller r0 (stopped)"]
    note(run_dir, "clear", "controller", ["r0"])
    assert [str(one) for one in standing(run_dir)] == ["gpu s2/0"]
