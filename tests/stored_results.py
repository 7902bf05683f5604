"""Pages that show stored results, and the age of these: `python -m tests.stored_results [--write]`.

With `--write`, the blocks of all pages, the pages of systems and that of other simulators are drawn
from the files in `docs/results`. Then the results are listed that are older than what they measure:
since their commit, other commits have touched the folders on which their figures depend. Age is no
error.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from moefabric_studies.bench_figures import read_figures
from moefabric_studies.oracle.page import text as simulators_text
from moefabric_studies.oracle.results import OracleTables
from moefabric_studies.raw_tables import read_table
from moefabric_studies.result_blocks import StoredResults, filled
from moefabric_studies.systems.page import page_text
from moefabric_studies.systems.study import StudyResult

from moefabric.api.provenance import MEASURED
from moefabric.results.model import Provenance, read_run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
BENCHMARKS = RESULTS / "benchmarks.csv"


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that may show results."""
    return [root / "README.md", *sorted(root.glob("docs/**/*.md"))]


def write_pages(root: Path, results: StoredResults) -> Iterator[Path]:
    """Fill the blocks of all pages, draw the pages of studies; yield those that changed."""
    texts = {page: filled(page.read_text(), page, results) for page in pages(root)}
    for study in sorted(root.glob("examples/systems/*.yaml")):
        texts[root / f"docs/systems/{study.stem}.md"] = system_page(study, root)
    if (tables := root / "docs/results/truth.csv").exists():
        texts[root / "docs/truth.md"] = simulators_page(tables, results)
    for page, text in texts.items():
        if page.read_text() != text:
            page.write_text(text)
            yield page


def system_page(study: Path, root: Path = ROOT) -> str:
    """Return the page of a study's file as its stored result gives it."""
    stored = StudyResult.read(study, root / "docs/results")
    return page_text(stored, study.relative_to(root))


def simulators_page(tables: Path, results: StoredResults) -> str:
    """Return the page of other simulators as its stored tables give it."""
    return filled(simulators_text(OracleTables.read(tables)), ROOT / "docs/truth.md", results)


def age(source: Provenance, root: Path = ROOT) -> str:
    """Return in words how much older a result is than what it measures; empty if it isn't.

    Args:
        source: Origin of the result.
        root: The repository.
    """
    commit, changed = source.commit, " of a changed source" if source.modified else ""
    if not commit:
        return "has no commit"
    if _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return f"commit {commit[:8]} is not in this clone, which may be shallow"
    paths = [path for path in source.measured if (root / path).exists()]
    since = _git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *paths)
    count = int(since or 0)
    commits = f"{count} commit{'s' * (count != 1)} since {commit[:8]} touched what it measures"
    return commits + changed if count else changed.strip()


def ages(folder: Path = RESULTS, root: Path = ROOT) -> dict[str, str]:
    """Return the age of each stored result that is older than what it measures, by its name."""
    found = {}
    for file in result_files(folder):
        if file.name == BENCHMARKS.name:
            if text := age_of_benches(file, root):
                found[file.stem] = text
            continue
        if file.suffix == ".csv":
            source, _ = read_table(file)
        else:
            source = read_run(file).manifest.provenance or Provenance()
        if text := age(source, root):
            found[str(file.relative_to(folder).with_suffix(""))] = text
    return found


def age_of_benches(file: Path, root: Path = ROOT) -> str:
    """Return the greatest age of a bench's rows, with its name; empty if none is old."""
    rows = {(one.bench, one.commit, one.modified) for one in read_figures(file)}
    old: dict[str, str] = {}
    for bench, commit, modified in sorted(rows):
        measured = [*MEASURED, str(bench_file(bench).relative_to(ROOT))]
        source = Provenance(commit=commit, modified=bool(modified), measured=measured)
        if text := age(source, root):
            old[bench] = max(old.get(bench, ""), text, key=_commits)
    if not old:
        return ""
    oldest, count = max(old, key=lambda bench: _commits(old[bench])), len({one[0] for one in rows})
    verb = "is" if len(old) == 1 else "are"
    return f"{old[oldest]} ({oldest}; {len(old)} of {count} benches {verb} old)"


def _commits(text: str) -> int:
    """Return the number with which an age begins."""
    first = text.partition(" ")[0]
    return int(first) if first.isdigit() else 0


def bench_file(bench: str) -> Path:
    """Return the source of a bench."""
    own = ROOT / f"tests/bench/{bench}.py"
    return own if own.exists() else ROOT / f"studies/tests/bench/{bench}.py"


def result_files(folder: Path) -> list[Path]:
    """Return the files of results that have a provenance; quiet runs have one in each row."""
    return sorted(
        file
        for pattern in ("*.json", "*.csv")
        for file in folder.rglob(pattern)
        if file.name != "quiet-runs.csv"
    )


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it fails."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Carry out the command line; return the exit status."""
    if "--write" in sys.argv[1:]:
        for page in write_pages(ROOT, StoredResults(RESULTS)):
            print(f"wrote {page.relative_to(ROOT)}")
    old = ages()
    for name, text in old.items():
        print(f"{name}: {text}")
    counts = [
        f"{name} {text.split()[0] if text[0].isdigit() else '?'}" for name, text in old.items()
    ]
    total = len(result_files(RESULTS))
    listed = f", by commits: {', '.join(counts)}" if counts else ""
    print(f"{len(old)} of {total} stored results are older than what they measure{listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
