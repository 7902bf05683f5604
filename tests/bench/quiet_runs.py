"""Runs an experiment several times on a quiet machine and keeps a line for each fabric of each run.

`python -m tests.bench.quiet_runs TABLE.csv COUNT [train] EXPERIMENT.yaml [--set key=value]...`
appends to the table; `python -m tests.bench.quiet_runs TABLE.csv` prints how often each reason of a
verdict was given. Every run counts, whatever its verdict.
"""

import csv
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "moefabric"
COLUMNS = (
    *("commit", "started", "command", "seconds", "scale", "fabric", "verdict", "collectives"),
    *("median", "p95_of_absolute", "iteration", "least_idle", "reasons"),
)


def rows(result: dict[str, Any], command: str, seconds: float) -> Iterator[list[object]]:
    """Yield a row for each fabric of a result, in the order of `COLUMNS`; errors in per cent."""
    manifest = result["manifest"]
    commit, started = manifest["provenance"]["commit"][:8], manifest["started"]
    for fabric in result["results"]:
        judged = fabric["fidelity"]
        errors = judged["completion_errors"]
        scale = "{bytes_scale:g} x {dilation:g}".format(**fabric["wiring"])
        collectives, iterations = errors.get("collective", {}), errors.get("iteration", {})
        figures = (collectives.get("p50"), collectives.get("abs_p95"), iterations.get("p50"))
        percent = ["" if figure is None else f"{100 * figure:+.2f}" for figure in figures]
        yield [
            *(commit, started, command, f"{seconds:.0f}", scale, fabric["fabric"]),
            *(judged["verdict"], collectives.get("n", 0), *percent, judged["cpu_idle_min"]),
            " | ".join(judged["reasons"]),
        ]


def run(words: Sequence[str]) -> list[list[object]]:
    """Return the rows of a run; `train` before the experiment runs its training program."""
    program = words if words[0] == "train" else ["run", *words]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        began = time.monotonic()
        subprocess.run([COMMAND, *program, "--json", file], check=False, text=True)
        seconds = time.monotonic() - began
        return [*rows(json.loads(file.read_text()), shlex.join(words), seconds)]


def append(table: Path, lines: Sequence[Sequence[object]]) -> None:
    """Append rows to a table, which begins with the names of its columns."""
    is_new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([*([COLUMNS] if is_new else []), *lines])


def passes(table: Path, experiment: str) -> str:
    """Return a Markdown table of an experiment's runs: passes and other runs' reasons by settings.

    Example:
        >>> print(passes(Path("docs/results/quiet-runs.csv"), "tests/sabotage/experiment.yaml"))
    """
    with table.open(newline="") as file:
        fabrics = [*csv.DictReader(file)]
    verdicts: dict[str, list[str]] = {}
    for fabric in fabrics:
        name, *settings = shlex.split(fabric["command"])
        if name == experiment:
            changes = ", ".join(f"`{word}`" for word in settings if word != "--set")
            verdicts.setdefault(changes or "none", []).append(fabric["reasons"])
    lines = ["| changes | runs | pass | reasons of the others |", "|---|---|---|---|"]
    for changes, texts in verdicts.items():
        kinds = Counter(kind for text in filter(None, texts) for kind in _kinds(text))
        others = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common())
        lines.append(f"| {changes} | {len(texts)} | {texts.count('')} | {others} |")
    return "\n".join(lines) + "\n"


def reasons(table: Path) -> Counter[str]:
    """Count the fabrics' reasons without their figures and places, and the fabrics of a pass."""
    with table.open(newline="") as file:
        fabrics = [*csv.DictReader(file)]
    counts = Counter(kind for one in fabrics for kind in _kinds(one["reasons"] or "pass"))
    return counts | Counter(fabrics=len(fabrics))


def _kinds(text: str) -> set[str]:
    """Return reasons without figures and places."""
    return {
        re.split(r" \(|:", re.sub(r"[-+]?\d[\d.%]*", "n", reason))[0]
        for reason in text.split(" | ")
    }


def main(words: Sequence[str]) -> None:
    """Run as a program, as the module says."""
    table, *rest = words
    if rest:
        count, *experiment = rest
        for _ in range(int(count)):
            append(Path(table), run(experiment))
    for reason, number in reasons(Path(table)).most_common():
        print(f"{number:5} {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
