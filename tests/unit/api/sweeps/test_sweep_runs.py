"""A sweep in memory: results as they end, further attempts, and what a second start repeats."""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric import Sweep, SweepResult
from moefabric.api.sweeps.campaign import SweepProgress, carry_out
from moefabric.api.sweeps.engine import RunEnded, RunTask
from moefabric.api.sweeps.execution import execute
from moefabric.api.sweeps.folder import SweepFolder, sweep_folder, uniform_rows
from moefabric.api.sweeps.plan import SweepPlan, plan_sweep
from moefabric.api.sweeps.results import RunRecord
from moefabric.api.sweeps.spec import SweepSpec
from moefabric.core.errors import OutputError, SpecError, UnsupportedError
from moefabric.core.resource_needs import ResourceNeeds
from moefabric.ui.cli.main import main
from tests.support.memory_engine import MemoryEngine
from tests.support.sweep_runs import EXPERIMENT, RATES, sweep_spec


class Lines:
    """Keeps what a sweep says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps = 0

    def show_message(self, text: str) -> None:
        self.lines.append(text)

    def advance(self, text: str) -> None:
        self.steps += 1


class Carrier:
    """Predicts runs in this process, and ends some attempts otherwise."""

    def __init__(
        self, plan: SweepPlan, end: Callable[[int, str], str] = lambda _n, _node: ""
    ) -> None:
        self._archives, self._end = plan.archives, end
        self.attempts: list[tuple[str, str]] = []

    def __call__(self, task: RunTask, node: str) -> RunEnded:
        self.attempts.append((task.id, node))
        if error := self._end(len(self.attempts), node):
            return RunEnded(task.id, error=error)
        archives = {digest: self._archives[digest] for digest in task.inputs}
        return execute(task, archives)


def run(
    spec: SweepSpec,
    out: Path,
    end: Callable[[int, str], str] = lambda _n, _node: "",
    *,
    resume: bool = False,
) -> tuple[SweepFolder, Carrier, Lines]:
    plan, lines = plan_sweep(spec, out.parent), Lines()
    carrier = Carrier(plan, end)
    with sweep_folder(out, plan, resume=resume) as folder:
        carry_out(plan, MemoryEngine(carrier, ["a", "b"]), folder, lines)
    return folder, carrier, lines


def table(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "table.jsonl").read_text().splitlines()]


def test_each_run_has_a_result_a_record_and_a_row_for_each_fabric(tmp_path: Path) -> None:
    folder, _, lines = run(sweep_spec(), tmp_path / "out")
    assert len(list((tmp_path / "out/runs").glob("*.json"))) == 4
    rows = table(tmp_path / "out")
    assert [(row[RATES], row["seed"], row["fabric"]) for row in rows[:4]] == [
        ("100Gb/s", 1, "eps"),
        ("100Gb/s", 1, "mixnet"),
        ("100Gb/s", 2, "eps"),
        ("100Gb/s", 2, "mixnet"),
    ]
    result = json.loads(folder.result_file(str(rows[1]["run"])).read_text())
    assert rows[1]["iteration_s"] == result["fabrics"][1]["iteration_s"]
    assert {row["verdict"] for row in rows} == {"predicted"}
    assert lines.steps == 4


def test_run_that_fails_is_tried_again_on_another_machine(tmp_path: Path) -> None:
    folder, carrier, lines = run(
        sweep_spec(), tmp_path / "out", lambda number, _: "no room" if number == 2 else ""
    )
    (again,) = [record for record in folder.ordered() if len(record.attempts) == 2]
    assert [attempt.host for attempt in again.attempts] == ["a", "b"]
    assert [attempt.error for attempt in again.attempts] == ["no room", ""]
    assert not again.failed
    assert [line for line in lines.lines if line.startswith("trying again")] == [
        f"trying again: {RATES}=100Gb/s, seed 2: no room (on a)"
    ]
    assert len(carrier.attempts) == 5


def test_failing_run_is_reported_and_repeated_by_resume(tmp_path: Path) -> None:
    spec, out = sweep_spec(retries=2, seeds=[1]), tmp_path / "out"
    folder, carrier, lines = run(spec, out, lambda *_: "broken")
    assert [record.failed for record in folder.ordered()] == [True, True]
    assert [node for _, node in carrier.attempts] == ["a", "a", "b", "b", "a", "a"]
    assert lines.lines[-1] == f"2 of 2 runs; {RATES}=400Gb/s, seed 1: failed: broken"
    assert table(out) == []
    folder, carrier, _ = run(spec, out, resume=True)
    assert len(carrier.attempts) == 2
    assert not any(record.failed for record in folder.ordered())


def test_resume_repeats_no_unchanged_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sweep_spec(), out)
    before = (out / "table.jsonl").read_text()
    with pytest.raises(SpecError, match="has results of a sweep: go on with --resume"):
        run(sweep_spec(), out)
    _, carrier, lines = run(sweep_spec(), out, resume=True)
    assert (carrier.attempts, lines.lines) == ([], ["4 runs, 4 of them are there already"])
    assert (out / "table.jsonl").read_text() == before
    _, carrier, _ = run(sweep_spec(seeds=[1, 2, 3]), out, resume=True)
    assert len(carrier.attempts) == 2
    _, carrier, _ = run(sweep_spec(changes={"training.iterations": 2}), out, resume=True)
    assert len(carrier.attempts) == 4


def test_nothing_to_resume_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no sweep to resume: leave out --resume"):
        run(sweep_spec(), tmp_path / "out/sweep", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_sweep_without_pyarrow_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sweep = Sweep(sweep="small", experiment=EXPERIMENT, mode="predict")
    with pytest.raises(UnsupportedError, match="needs pyarrow"):
        sweep.run(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_sweep_that_ends_before_a_run_has_leaves_no_folder(tmp_path: Path) -> None:
    plan = plan_sweep(sweep_spec(), tmp_path)
    with (
        pytest.raises(UnsupportedError, match="too small"),
        sweep_folder(tmp_path / "out/sweep", plan),
    ):
        raise UnsupportedError("too small")
    assert list(tmp_path.iterdir()) == []


def test_sweep_that_has_ended_is_loaded(tmp_path: Path) -> None:
    spec, out = sweep_spec(seeds=[2, 1], baseline="eps"), tmp_path / "out"
    folder, _, _ = run(spec, out)
    result = SweepResult(spec, version("moefabric"), 4, folder.ordered())
    (out / "sweep.json").write_text(json.dumps(result.to_json()))
    loaded = SweepResult.load(out)
    assert loaded.records == result.records
    assert loaded.to_json() == result.to_json()
    (out / "sweep.json").write_text("{}")
    with pytest.raises(SpecError, match="is not the summary of a sweep"):
        SweepResult.load(out)


def test_resume_goes_on_after_a_crash_in_the_middle_of_a_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sweep_spec(), out)
    records = (out / "runs.jsonl").read_text()
    (out / "runs.jsonl").write_text(records[:-20])
    folder, carrier, _ = run(sweep_spec(), out, resume=True)
    assert len(carrier.attempts) == 1
    assert len(folder.records) == len((out / "runs.jsonl").read_text().splitlines()) == 4
    (out / "runs.jsonl").write_text("{}\n" + records)
    with pytest.raises(SpecError, match="line 1: Field required"):
        run(sweep_spec(), out, resume=True)


def test_new_figures_come_from_existing_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sweep_spec(), out)
    spec = sweep_spec(figures=["network_usd", "wiring.servers"])
    _, carrier, _ = run(spec, out, resume=True)
    assert carrier.attempts == []
    assert {row["wiring.servers"] for row in table(out)} == {4}
    assert all(isinstance(row["network_usd"], float) for row in table(out))


def test_interrupted_sweep_keeps_ended_runs(tmp_path: Path) -> None:
    def interrupt(number: int, _node: str) -> str:
        if number == 3:
            raise KeyboardInterrupt
        return ""

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(sweep_spec(), out, interrupt)
    assert len(table(out)) == 4
    assert len(run(sweep_spec(), out, resume=True)[1].attempts) == 2


def test_interrupted_command_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    out, file = tmp_path / "out", tmp_path / "sweep.yaml"
    run(sweep_spec(), out)
    file.write_text(json.dumps(sweep_spec().model_dump(mode="json", exclude_unset=True)))
    monkeypatch.setattr("moefabric.api.sweep.parquet_modules", interrupt)
    command = ["sweep", str(file), "--out", str(out), "--resume"]
    lines = CliRunner().invoke(main, command).output.splitlines()
    remedy = "`moefabric sweep --resume` goes on"
    assert lines[0] == f"moefabric: {out} has the runs that have ended; {remedy}"


def test_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sweep_spec(), out)
    summary = out / "sweep.json"
    summary.write_text('{"sweep": "small"}')
    run(sweep_spec(), out, resume=True)
    with pytest.raises(SpecError, match="has results of the sweep small, not of other: give ano"):
        run(sweep_spec(sweep="other"), out, resume=True)
    summary.write_text("{")  # cut off: it says nothing
    run(sweep_spec(sweep="other"), out, resume=True)


def test_file_for_the_folder_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match=r"out/runs: lies in a file, where a folder is needed$"):
        run(sweep_spec(), tmp_path / "out")
    with pytest.raises(
        SpecError, match=r"out/sweep\.json: lies in a file, where a folder is needed$"
    ):
        SweepResult.load(tmp_path / "out")


def test_missing_experiment_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^experiment: /.*/smal\.yaml: No such file"):
        plan_sweep(sweep_spec(experiment="smal.yaml"), tmp_path)


def test_run_that_fits_on_no_machine_is_refused(tmp_path: Path) -> None:
    plan = plan_sweep(sweep_spec(cores=3), tmp_path)
    engine = MemoryEngine(Carrier(plan), size=ResourceNeeds(2, 4_000_000_000))
    with (
        sweep_folder(tmp_path / "out", plan) as folder,
        pytest.raises(UnsupportedError, match=r"a run needs 3 cores .* each machine has 2 cores"),
    ):
        carry_out(plan, engine, folder, Lines())


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    plan = plan_sweep(sweep_spec(), tmp_path)
    with (
        sweep_folder(tmp_path / "out", plan),
        pytest.raises(OutputError, match="another sweep writes to it"),
        sweep_folder(tmp_path / "out", plan, resume=True),
    ):
        pass


def test_progress_shows_the_remaining_time() -> None:
    now, lines = [0.0], Lines()
    progress = SweepProgress(lines, 10, lambda: now[0])
    progress.begin(2)
    for _ in range(2):
        progress.start()
    for _ in range(2):
        now[0] += 60
        progress.end("x", RunRecord.model_validate(EMPTY))
    assert lines.lines == [
        "10 runs, 2 of them are there already",
        "3 of 10 runs, 1 running, about 7 min left; x: pass",
        "4 of 10 runs, about 6 min left; x: pass",
    ]


EMPTY = {
    "run": "1",
    "point": 0,
    "values": {},
    "seed": 1,
    "repetition": 0,
    "attempts": [{}],
    "fabrics": [{"fabric": "eps", "policy": "eps", "verdict": "pass", "figures": {}}],
}


def test_columns_of_mixed_types_become_text() -> None:
    rows: list[dict[str, object]] = [
        {"a": 1, "b": 1, "c": None},
        {"a": "auto", "b": 2.5, "c": True},
    ]
    expected = [{"a": "1", "b": 1, "c": None}, {"a": "auto", "b": 2.5, "c": True}]
    assert uniform_rows(rows) == expected


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process become larger, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_leaves_whole_records_and_resume_goes_on(tmp_path: Path) -> None:
    spec, out = sweep_spec(), tmp_path / "out"
    folder, _, _ = run(spec, out)
    whole = (out / "runs.jsonl").read_bytes()
    record, size = folder.ordered()[0], len(whole)
    for room in (1, size // 8):  # a part of the line would have room
        with largest_file(size + room), pytest.raises(OutputError, match="free some room"):
            folder.add(record.model_copy(update={"attempts": record.attempts * 50}), "")
        assert (out / "runs.jsonl").read_bytes() == whole
    _, carrier, _ = run(spec, out, resume=True)
    assert carrier.attempts == []


def test_resume_takes_a_folder_whose_last_record_is_cut(tmp_path: Path) -> None:
    spec, out = sweep_spec(), tmp_path / "out"
    run(spec, out)
    whole = (out / "runs.jsonl").read_bytes()
    (out / "runs.jsonl").write_bytes(whole[:-20])
    _, carrier, _ = run(spec, out, resume=True)
    assert len(carrier.attempts) == 1
    assert len((out / "runs.jsonl").read_bytes().splitlines()) == 4


@pytest.mark.parametrize("damaged", [b"{\n", b"\xff", None], ids=["cut", "binary", "gone"])
def test_resume_names_and_repeats_a_run_whose_result_is_no_longer_whole(
    damaged: bytes | None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    folder, _, _ = run(sweep_spec(), out)
    file = folder.result_file(folder.ordered()[1].run)
    whole = json.loads(file.read_text())
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged)
    _, carrier, lines = run(sweep_spec(), out, resume=True)
    assert [run for run, _ in carrier.attempts] == [file.stem]
    assert lines.lines[0] == f"warning: {file} is gone or damaged: its run is repeated"
    assert json.loads(file.read_text()) == whole


def test_resume_of_a_part_keeps_the_results_of_other_runs(tmp_path: Path) -> None:
    out, part = tmp_path / "out", sweep_spec(grid={RATES: ["400Gb/s"]}, seeds=[2])
    run(sweep_spec(), out)
    whole = table(out)
    folder, carrier, _ = run(part, out, resume=True)
    assert carrier.attempts == []
    assert len((out / "runs.jsonl").read_text().splitlines()) == 4
    assert [row["run"] for row in table(out)] == [*folder.records] * 2
    result = SweepResult(part, version("moefabric"), 1, folder.ordered())
    (out / "sweep.json").write_text(json.dumps(result.to_json()))
    assert SweepResult.load(out).records == result.records
    _, carrier, _ = run(sweep_spec(), out, resume=True)
    assert carrier.attempts == []
    assert table(out) == whole


def test_resume_of_other_runs_that_is_stopped_at_once_keeps_the_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sweep_spec(), out)
    with sweep_folder(out, plan_sweep(sweep_spec(seeds=[9]), tmp_path), resume=True):
        pass
    assert run(sweep_spec(), out, resume=True)[1].attempts == []


def test_second_lines_of_the_table_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SweepFolder, "write_parquet", lambda _folder: None)
    monkeypatch.setattr("moefabric.api.sweep.parquet_modules", lambda: None)
    out, file = tmp_path / "out", tmp_path / "sweep.yaml"
    run(sweep_spec(baseline="eps"), out)
    keys = sweep_spec(baseline="eps").model_dump(mode="json", exclude_unset=True)
    file.write_text(json.dumps(keys))
    command = ["sweep", str(file), "--out", str(out), "--resume"]  # all of its runs are there
    table = CliRunner().invoke(main, command).output
    assert "x ±" in table
    assert table.startswith("Least iteration time: ")
    assert max(map(len, table.splitlines()[:-1])) <= 80  # the last line is a path
    assert "\nnic_rate: wiring.nic_rate\n" in table
    assert "\nsecond lines: relative to eps in the same run\n" in table
    table = CliRunner().invoke(main, [*command, "--set", "baseline=null"]).output
    assert "second lines" not in table
