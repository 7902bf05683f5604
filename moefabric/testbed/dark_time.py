"""Dark time of an OCS as packets see it: gaps in a steady stream of numbered frames."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

_LONGEST_PAUSE: Final = 4.0
"""Longest pause, in frame spacings, at the edges of a dark interval that counts as certain."""
_QUANTILES: Final = (0.5, 0.99)


@dataclass(frozen=True)
class DarkInterval:
    """Time without light during one change of circuits, plus or minus `within_s`.

    The resolution is that of the frames that were sent around its edges.
    """

    seconds: float
    within_s: float
    lost: int
    """Frames lost in the interval."""
    lost_outside: int
    """Frames lost before and after the interval."""
    strays: int = 0
    """Frames received at the port from which the circuit had moved away."""

    def is_certain(self, spacing_s: float) -> bool:
        """Return whether a stream of this median spacing was steady at the interval's edges."""
        return self.within_s <= _LONGEST_PAUSE * spacing_s / 2


def measure_dark_interval(
    sent_ns: Sequence[int], received: Iterable[int], strays: int = 0
) -> DarkInterval:
    """Find the dark interval in a stream of frames: the longest run of lost frames.

    It starts between the last frame received before it and the first frame lost, and ends likewise;
    the middle of both bounds is taken. If the stream starts or ends dark, the result is uncertain.

    Args:
        sent_ns: Time at which each frame was sent, by frame number.
        received: Numbers of the frames that were received.
        strays: Number of stray frames, for the result.
    """
    sent = np.asarray(sent_ns, dtype=np.int64)
    is_received = np.zeros(len(sent) + 2, dtype=bool)
    is_received[[0, -1]] = True
    is_received[1 + np.fromiter(received, dtype=np.int64)] = True
    numbers = np.flatnonzero(is_received) - 1
    lost_runs = np.diff(numbers) - 1
    longest = int(lost_runs.argmax())
    lost, before, after = int(lost_runs[longest]), int(numbers[longest]), int(numbers[longest + 1])
    lost_outside = int(lost_runs.sum()) - lost
    if not lost:
        return DarkInterval(0.0, float(np.diff(sent).max(initial=0)) / 1e9, 0, 0, strays)
    if before < 0 or after >= len(sent):
        return DarkInterval(float(sent[-1] - sent[0]) / 1e9, inf, lost, lost_outside, strays)
    least_ns, most_ns = sent[after - 1] - sent[before + 1], sent[after] - sent[before]
    middle_s, within_s = (least_ns + most_ns) / 2e9, (most_ns - least_ns) / 2e9
    return DarkInterval(middle_s, within_s, lost, lost_outside, strays)


@dataclass(frozen=True)
class Calibration:
    """Dark intervals of one OCS, and its configured dark time `asked_s`.

    `spacing_s` is the median time between two frames.
    """

    ocs: str
    asked_s: float
    spacing_s: float
    moves: tuple[DarkInterval, ...]

    @property
    def certain(self) -> tuple[DarkInterval, ...]:
        """Intervals during which the machine kept the stream steady."""
        return tuple(move for move in self.moves if move.is_certain(self.spacing_s))

    def dark_s(self, quantile: float) -> float:
        """Return a quantile of the certain dark times."""
        return float(np.quantile([move.seconds for move in self.certain], quantile))

    def error_s(self, quantile: float) -> float:
        """Return a quantile of the certain dark times' absolute deviations from `asked_s`."""
        errors = [abs(move.seconds - self.asked_s) for move in self.certain]
        return float(np.quantile(errors, quantile))

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds.

        Uncertain moves count in `moves`, `uncertain` and `strays` only. Without certain moves there
        are no quantiles.
        """
        quantiles = {
            f"{name}_p{round(100 * q)}_s": figure(q)
            for name, figure in (("dark", self.dark_s), ("error", self.error_s))
            for q in _QUANTILES
            if self.certain
        }
        return {
            "ocs": self.ocs,
            "asked_s": self.asked_s,
            "spacing_s": self.spacing_s,
            "moves": len(self.moves),
            "uncertain": len(self.moves) - len(self.certain),
            **quantiles,
            "lost_besides": sum(move.lost_outside for move in self.certain),
            "strays": sum(move.strays for move in self.moves),
            "dark_s": [move.seconds for move in self.certain],
        }


def calibration_table(calibrations: Iterable[Calibration]) -> str:
    """Format calibrations as a table in milliseconds."""
    titles = ("configured", "measured p50", "p99", "error p50", "p99", "moves")
    widths = (11, 14, 9, 11, 8, 7)
    head = "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    lines = [f"{'':8}{head}  ms"]
    for calibration in calibrations:
        certain, figures = len(calibration.certain), f"{'the machine was too busy':>42}"
        if certain:
            values = [of(q) for of in (calibration.dark_s, calibration.error_s) for q in _QUANTILES]
            columns = zip(values, widths[1:5], strict=True)
            figures = "".join(f"{1e3 * value:{width}.3f}" for value, width in columns)
        uncertain = len(calibration.moves) - certain
        note = f"  {uncertain} more while the stream was held up" if uncertain else ""
        configured = f"{1e3 * calibration.asked_s:{widths[0]}.3f}"
        lines.append(f"{calibration.ocs:8}{configured}{figures}{certain:{widths[5]}}{note}")
    return "\n".join(lines)
