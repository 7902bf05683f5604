"""What Ryu's switch tester says, read; and what that comes to, written as a page."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Ryu

# isort: split
from ryu.ofproto import ofproto_v1_3 as of

DESCRIPTIONS = Path(__file__).parent / "data" / "openflow-conformance" / "of13"
PASS, UNSUPPORTED, FAIL = "pass", "not supported", "fail"
_REFUSED = re.compile(r"Failed to add (?:flows|groups|meters): OFPErrorMsg\[type=(\w+), code=(\w+)\]")


@dataclass(frozen=True)
class Case:
    """One test: the file it is in, under `of13`, and the tester's words for it."""

    file: str
    name: str


@dataclass(frozen=True)
class Verdict:
    """What came of a test, and why it is no pass: the switch's error, or the tester's words; at which try it was so."""

    result: str
    why: str = ""
    tries: int = 1

    @property
    def said(self) -> str:
        """Without its tries."""
        return f"{self.result}: {self.why}" if self.why else self.result

    def __str__(self) -> str:
        return f"{self.said} (try {self.tries})" if self.tries > 1 else self.said


Verdicts = Mapping[Case, Verdict]


def files(*parts: str) -> list[str]:
    """The files of descriptions under `of13`, sorted; those whose names begin with one of `parts` if there are any."""
    found = sorted(str(path.relative_to(DESCRIPTIONS)) for path in DESCRIPTIONS.rglob("*.json"))
    return [file for file in found if not parts or file.startswith(parts)]


_ALL_FILES = frozenset(files())


def cases(file: str) -> list[Case]:
    """Its tests, in order."""
    _, *told = json.loads((DESCRIPTIONS / file).read_text())
    return [Case(file, each["description"]) for each in told]


def described(file: str, tried: Collection[Case], rate_s: int) -> str:
    """The file with these tests alone, and rates measured for so long; it says 30 s."""
    heading, *told = json.loads((DESCRIPTIONS / file).read_text())
    chosen = [each for each in told if Case(file, each["description"]) in tried]
    text = json.dumps([heading, *chosen])
    return re.sub(r'"duration_time": *\d+', f'"duration_time": {rate_s}', text)


def is_slow(file: str) -> bool:
    """Whether it measures rates, half a minute each."""
    return "pktps" in (DESCRIPTIONS / file).read_text()


def verdicts(said: str, tried: Iterable[Case]) -> dict[Case, Verdict]:
    """What the tester printed of these tests. One that it says nothing of has failed."""
    found = dict.fromkeys(tried, Verdict(FAIL, "the tester says nothing of it"))
    headings = {
        json.loads((DESCRIPTIONS / file).read_text())[0]: file for file in {case.file for case in found}
    }
    file, last = "", Case("", "")
    for line in said.splitlines():
        if line in headings:
            file = headings[line]
        elif told := re.fullmatch(r" {4}(\S.*\S) +(OK|ERROR)", line):
            last = Case(file, told[1])
            found[last] = Verdict(PASS if told[2] == "OK" else FAIL)
        elif found.get(last) == Verdict(FAIL) and line.startswith(" " * 8):
            found[last] = _verdict(line.strip())
    return found


def _verdict(why: str) -> Verdict:
    if refused := _REFUSED.fullmatch(why):
        return Verdict(UNSUPPORTED, error(int(refused[1], 16), int(refused[2], 16)))
    return Verdict(FAIL, why)


def error(kind: int, code: int) -> str:
    """OpenFlow's names for an error: `OFPET_BAD_MATCH, OFPBMC_BAD_FIELD`."""
    names = of.ofp_error_type_to_str(kind), of.ofp_error_code_to_str(kind, code)
    return ", ".join(name.split("(")[0] for name in names)


def summary(found: Verdicts) -> str:
    """`N of M pass, N not supported, N fail`."""
    counts = Counter(verdict.result for verdict in found.values())
    return f"{counts[PASS]} of {len(found)} pass, {counts[UNSUPPORTED]} not supported, {counts[FAIL]} fail"


def page(switches: Sequence[tuple[str, Verdicts]], how: str) -> str:
    """The whole of it in Markdown: a summary, a table of files, and every test; `switches` are (name, what came of the tests)."""
    lines = ["# OpenFlow 1.3 conformance", "", *how.splitlines(), ""]
    lines += [f"* **{name}**: {summary(found)}" for name, found in switches]
    tried = sorted({case.file for _, found in switches for case in found})
    lines += ["", "## By description", ""]
    lines += _table(
        ["description", *(name for name, _ in switches)], [_row(file, switches) for file in tried]
    )
    for file in tried:
        lines += ["", f"## {file.removesuffix('.json')}", ""]
        rows = [
            [_cell(case.name), *(_cell(str(found[case])) if case in found else "-" for _, found in switches)]
            for case in cases(file)
        ]
        lines += _table(["test", *(name for name, _ in switches)], rows)
    return "\n".join(lines) + "\n"


def listed(written: str, column: int) -> dict[Case, str]:
    """What a page says of each test, tries left out: of the switches in the first column (0), or the next."""
    found, file = dict[Case, str](), ""
    for line in written.splitlines():
        if line.startswith("## "):
            file = f"{line.removeprefix('## ')}.json"
        elif line.startswith("| ") and file in _ALL_FILES and not line.startswith(("| test |", "| --- |")):
            name, *told = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            found[Case(file, name.replace("\\|", "|"))] = re.sub(r" \(try \d+\)$", "", told[column])
    return found


def _row(file: str, switches: Sequence[tuple[str, Verdicts]]) -> list[str]:
    told = list[str]()
    for _, found in switches:
        counts = Counter(verdict.result for case, verdict in found.items() if case.file == file)
        told.append(
            ", ".join(f"{counts[result]} {result}" for result in (PASS, UNSUPPORTED, FAIL) if counts[result])
        )
    return [file.removesuffix(".json"), *told]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
