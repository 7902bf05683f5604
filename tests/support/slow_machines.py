"""Runs of small experiments whose times a slow machine may have spoilt, and nothing else."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from string import Formatter
from typing import Any, Final

from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import Reason


def _words_of(reason: Reason) -> str:
    """Return the regular expression that the texts of a reason match."""
    parts = Formatter().parse(reason.text)
    return "".join(re.escape(text) + (".+" if name else "") for text, name, *_ in parts)


_ACCEPTED: Final = [
    _words_of(reason)
    for reason in (
        reasons.MEDIAN_ERROR, reasons.P95_ERROR, reasons.BIAS, reasons.FEW_OUTLIERS,
        reasons.LINK_GOODPUT, reasons.LATENESS, reasons.DARK_TIME, reasons.SLOW_CONTROL,
        reasons.NO_COLLECTIVE, reasons.DISTURBED, reasons.BUSY, reasons.STARVED, reasons.FAST_NICS,
        reasons.STARTS, reasons.REPORTS, reasons.ARRIVALS, reasons.LATE_CONTROL,
        reasons.FEW_COLLECTIVES, reasons.NO_CPU_SAMPLE, reasons.LONG_FRAMES,  # it is small
    )
]  # fmt: skip


def unaccepted(given: Iterable[str], *also: str) -> list[str]:
    """Return the reasons of a verdict that no slow machine explains, nor a regular expression."""
    accepted = re.compile("|".join([*_ACCEPTED, *also]))
    return [reason for reason in given if not accepted.fullmatch(reason)]


def was_starved(output: str) -> bool:
    """Return whether a command's output names a machine that was too slow."""
    return re.search(_words_of(reasons.STARVED), output) is not None


def finished_run(file: Path, status: int, output: str, *also: str) -> dict[str, Any]:
    """Return the results of a run whose verdicts have accepted reasons only.

    Args:
        file: The results.
        status: Exit status of the command.
        output: What the command has printed.
        also: Regular expressions of other accepted reasons.
    """
    assert status in {0, 3}, output
    run: dict[str, Any] = json.loads(file.read_text())
    assert (run["verdict"] == "invalid") == (status == 3), output
    for result in run["results"]:
        wrong = unaccepted(result["fidelity"]["reasons"], *also)
        assert not wrong, f"{result['fabric']}: {wrong}"
    return run
