"""Pages show what stored results say, and the age of results is listed."""

import json
import re
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from moefabric_studies.bench_figures import Figure, figures_text, read_figures
from moefabric_studies.result_blocks import StoredResults, filled

from moefabric.report.stored_results import LIMIT_BYTES, stored_text
from moefabric.results.model import read_run
from tests.stored_results import (
    BENCHMARKS,
    RESULTS,
    ROOT,
    ages,
    bench_file,
    pages,
    result_files,
    simulators_page,
    system_page,
    write_pages,
)

FILES = sorted(RESULTS.glob("*.json"))
RUN_OF_AN_EXAMPLE = re.compile(r"moefabric (?:run|train) (examples/\S+)")
SHOWN = [page for page in pages() if re.search("<!-- (result|bench)", page.read_text())]


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_page_shows_the_stored_results(page: Path) -> None:
    """Each figure from a result on README and pages is that of the raw file."""
    text = page.read_text()
    assert filled(text, page, StoredResults(RESULTS)) == text


@pytest.mark.parametrize(
    "study", sorted(ROOT.glob("examples/systems/*.yaml")), ids=lambda file: file.stem
)
def test_page_of_a_system_is_that_of_its_stored_result(study: Path) -> None:
    stored = RESULTS / f"systems/{study.stem}.json"
    assert len(stored.read_bytes()) <= LIMIT_BYTES
    assert (ROOT / f"docs/systems/{study.stem}.md").read_text() == system_page(study)


def test_page_of_simulators_is_that_of_its_stored_tables() -> None:
    drawn = simulators_page(RESULTS / "truth.csv", StoredResults(RESULTS))
    assert (ROOT / "docs/truth.md").read_text() == drawn


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_stored_result_is_small_as_written_and_of_known_origin(file: Path) -> None:
    text, run = file.read_text(), read_run(file)
    assert len(text.encode()) <= LIMIT_BYTES
    assert stored_text(run) == text
    source = run.manifest.provenance
    assert source is not None
    assert re.fullmatch("[0-9a-f]{40}", source.commit or "")
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in source.inputs.values())
    assert source.inputs
    assert source.measured


def test_figures_of_benches_are_as_written_and_of_tests_that_exist() -> None:
    figures = read_figures(BENCHMARKS)
    assert figures_text(figures) == BENCHMARKS.read_text()
    for one in figures:
        assert f"def {one.test.partition('[')[0]}(" in bench_file(one.bench).read_text()
        assert re.fullmatch("[0-9a-f]{8}", one.commit)


def test_page_of_benches_has_them_all() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    shown = ", ".join(re.findall("<!-- benches: (.*?) -->", text)).split(", ")
    files = {*ROOT.glob("tests/bench/bench_*.py"), *ROOT.glob("studies/tests/bench/bench_*.py")}
    assert sorted(shown) == sorted(file.stem for file in files)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_whose_stored_run_did_not_pass_says_so_at_its_head(file: Path) -> None:
    run = read_run(file)
    source = run.manifest.provenance
    example = RUN_OF_AN_EXAMPLE.fullmatch((source and source.command) or "")
    if example is None or run.verdict == "pass":
        return
    lines = (ROOT / example[1]).read_text().splitlines()
    head = " ".join(takewhile(lambda line: line.startswith("#"), lines))
    failed = [one.fabric for one in run.results if one.fidelity.verdict == run.verdict]
    assert f"are `{run.verdict}`" in head or f"is `{run.verdict}`" in head
    assert "All fabrics" in head or all(f"`{fabric}`" in head for fabric in failed)


def test_a_changed_figure_is_noticed_and_mended(tmp_path: Path) -> None:
    (tmp_path / "docs/results").mkdir(parents=True)
    for file in RESULTS.glob("forwarding*.json"):
        shutil.copy(file, tmp_path / "docs/results")
    page = ROOT / "docs/forwarding.md"
    (tmp_path / "README.md").write_text("No figures.\n")
    copy = tmp_path / "docs/forwarding.md"
    copy.write_text(
        re.sub(r"\| \d\.\d\dx \| pass \|", "| 9.99x | pass |", page.read_text(), count=1)
    )
    assert copy.read_text() != page.read_text()
    results = StoredResults(tmp_path / "docs/results")
    assert list(write_pages(tmp_path, results)) == [copy]
    assert copy.read_text() == page.read_text()
    assert list(write_pages(tmp_path, results)) == []


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository, and its commit after which its code and its page changed."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for name, text in (("agents/a.py", "1"), ("agents/a.py", "2"), ("docs/page.md", "3")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"Write {text}")
    return folder, git(folder, "rev-parse", "HEAD~2")


def store(folder: Path, **source: object) -> None:
    manifest = {"provenance": {"measured": ["agents"], **source}}
    document = {"experiment": "a", "manifest": manifest, "results": []}
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs/a.json").write_text(json.dumps(document))


def test_result_is_as_old_as_the_commits_that_touched_what_it_measures(
    repository: tuple[Path, str],
) -> None:
    folder, commit = repository
    store(folder, commit=commit)
    touched = f"1 commit since {commit[:8]} touched what it measures"
    assert ages(folder / "docs", folder) == {"a": touched}
    store(folder, commit=git(folder, "rev-parse", "HEAD~1"))
    assert ages(folder / "docs", folder) == {}
    store(folder, commit=None)
    assert ages(folder / "docs", folder) == {"a": "has no commit"}


def test_benches_are_as_old_as_the_oldest_of_them(repository: tuple[Path, str]) -> None:
    folder, commit = repository
    rows = [
        Figure(*(bench, "test", "a", *("",) * 6, one, "", "2026-12-01", ""))
        for bench, one in (("bench_a", commit[:8]), ("bench_b", git(folder, "rev-parse", "HEAD")))
    ]
    (folder / "docs/benchmarks.csv").write_text(figures_text(rows))
    touched = f"1 commit since {commit[:8]} touched what it measures"
    told = {"benchmarks": f"{touched} (bench_a; 1 of 2 benches is old)"}
    assert ages(folder / "docs", folder) == told
    (folder / "docs/benchmarks.csv").write_text(figures_text(rows[1:]))
    assert ages(folder / "docs", folder) == {}


def test_age_is_unknown_in_a_shallow_clone(repository: tuple[Path, str], tmp_path: Path) -> None:
    folder, commit = repository
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", str(clone))
    store(clone, commit=commit)
    unknown = f"commit {commit[:8]} is not in this clone, which may be shallow"
    assert ages(clone / "docs", clone) == {"a": unknown}


def test_listing_ends_with_a_count_and_exit_status_0() -> None:
    command = [sys.executable, "-m", "tests.stored_results"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count = len(result_files(RESULTS))
    assert re.search(rf"\d+ of {count} stored results are older", done.stdout)
