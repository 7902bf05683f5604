"""Parses the output of Ryu's switch tester, and writes the results as a page."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moefabric.controller.southbound.openflow import framework  # noqa: F401 - before Ryu

# isort: split
from ryu.ofproto import ofproto_v1_3 as of

from tests.support.paths import REPOSITORY

DESCRIPTIONS = REPOSITORY / "tests" / "data" / "openflow-conformance" / "of13"
PASS, UNSUPPORTED, FAIL = "pass", "not supported", "fail"
_REFUSED = re.compile(
    r"Failed to add (?:flows|groups|meters): OFPErrorMsg\[type=(\w+), code=(\w+)\]"
)


@dataclass(frozen=True)
class Case:
    """A test: its file below `of13`, and its description."""

    file: str
    name: str


@dataclass(frozen=True)
class Verdict:
    """Result of a test, the switch's error or the tester's reason, and the number of runs."""

    result: str
    reason: str = ""
    tries: int = 1

    @property
    def text(self) -> str:
        """The verdict without the number of runs."""
        return f"{self.result}: {self.reason}" if self.reason else self.result

    def __str__(self) -> str:
        return f"{self.text} (try {self.tries})" if self.tries > 1 else self.text


Verdicts = Mapping[Case, Verdict]


def files(*parts: str) -> list[str]:
    """The sorted files below `of13`, or those whose names begin with one of `parts`."""
    names = sorted(str(path.relative_to(DESCRIPTIONS)) for path in DESCRIPTIONS.rglob("*.json"))
    return [file for file in names if not parts or file.startswith(parts)]


_ALL_FILES = frozenset(files())


def cases(file: str) -> list[Case]:
    """The tests of a file in order."""
    _, *tests = json.loads((DESCRIPTIONS / file).read_text())
    return [Case(file, test["description"]) for test in tests]


def selected_description(file: str, selected: Collection[Case], rate_s: int) -> str:
    """A file with the selected tests, and rates measured for `rate_s` instead of 30 s."""
    heading, *tests = json.loads((DESCRIPTIONS / file).read_text())
    chosen = [test for test in tests if Case(file, test["description"]) in selected]
    text = json.dumps([heading, *chosen])
    return re.sub(r'"duration_time": *\d+', f'"duration_time": {rate_s}', text)


def is_slow(file: str) -> bool:
    """Whether a file measures rates."""
    return "pktps" in (DESCRIPTIONS / file).read_text()


def verdicts(output: str, selected: Iterable[Case]) -> dict[Case, Verdict]:
    """Parses the tester's output; a test without output has failed."""
    results = dict.fromkeys(selected, Verdict(FAIL, "the tester says nothing of it"))
    headings = {
        json.loads((DESCRIPTIONS / file).read_text())[0]: file
        for file in {case.file for case in results}
    }
    file, last = "", Case("", "")
    for line in output.splitlines():
        if line in headings:
            file = headings[line]
        elif result := re.fullmatch(r" {4}(\S.*\S) +(OK|ERROR)", line):
            last = Case(file, result[1])
            results[last] = Verdict(PASS if result[2] == "OK" else FAIL)
        elif results.get(last) == Verdict(FAIL) and line.startswith(" " * 8):
            results[last] = _verdict(line.strip())
    return results


def _verdict(reason: str) -> Verdict:
    if refused := _REFUSED.fullmatch(reason):
        return Verdict(UNSUPPORTED, error(int(refused[1], 16), int(refused[2], 16)))
    return Verdict(FAIL, reason)


def error(kind: int, code: int) -> str:
    """OpenFlow's names for an error: `OFPET_BAD_MATCH, OFPBMC_BAD_FIELD`."""
    names = of.ofp_error_type_to_str(kind), of.ofp_error_code_to_str(kind, code)
    return ", ".join(name.split("(")[0] for name in names)


def summary(results: Verdicts) -> str:
    """`N of M pass, N not supported, N fail`."""
    counts = Counter(verdict.result for verdict in results.values())
    passed = f"{counts[PASS]} of {len(results)} pass"
    return f"{passed}, {counts[UNSUPPORTED]} not supported, {counts[FAIL]} fail"


def page(switches: Sequence[tuple[str, Verdicts]], introduction: str) -> str:
    """The page in Markdown: a summary, a table of files, and every test.

    `switches` are (name, verdicts).
    """
    lines = ["# OpenFlow 1.3 conformance", "", *introduction.splitlines(), ""]
    lines += [f"* **{name}**: {summary(results)}" for name, results in switches]
    tested = sorted({case.file for _, results in switches for case in results})
    lines += ["", "## By description", ""]
    lines += _table(
        ["description", *(name for name, _ in switches)], [_row(file, switches) for file in tested]
    )
    for file in tested:
        lines += ["", f"## {file.removesuffix('.json')}", ""]
        rows = [
            [
                _cell(case.name),
                *(_cell(str(results[case])) if case in results else "-" for _, results in switches),
            ]
            for case in cases(file)
        ]
        lines += _table(["test", *(name for name, _ in switches)], rows)
    return "\n".join(lines) + "\n"


def parse_page(text: str, column: int) -> dict[Case, str]:
    """The verdicts of a page, without numbers of runs, of the switches in a column (0 or 1)."""
    verdicts, file = dict[Case, str](), ""
    for line in text.splitlines():
        if line.startswith("## "):
            file = f"{line.removeprefix('## ')}.json"
        elif (
            line.startswith("| ")
            and file in _ALL_FILES
            and not line.startswith(("| test |", "| --- |"))
        ):
            name, *columns = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            verdicts[Case(file, name.replace("\\|", "|"))] = re.sub(
                r" \(try \d+\)$", "", columns[column]
            )
    return verdicts


def _row(file: str, switches: Sequence[tuple[str, Verdicts]]) -> list[str]:
    cells = list[str]()
    for _, results in switches:
        counts = Counter(verdict.result for case, verdict in results.items() if case.file == file)
        cells.append(
            ", ".join(
                f"{counts[result]} {result}"
                for result in (PASS, UNSUPPORTED, FAIL)
                if counts[result]
            )
        )
    return [file.removesuffix(".json"), *cells]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
