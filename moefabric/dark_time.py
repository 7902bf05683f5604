"""Dark time as packets see it: from which numbered frames of a steady stream came through, how long there was no light."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

_HOLE: Final = 4.0
"""A stream that pauses so many times its spacing at an edge of the dark leaves open when that was."""


@dataclass(frozen=True)
class Dark:
    """One move of light: no light for `seconds`, give or take `within_s`, since one sees it by the frames that were sent just then."""

    seconds: float
    within_s: float
    lost: int
    lost_besides: int
    """Frames that were lost, and not in the dark."""
    strays: int = 0
    """Frames that came out where there should be no light."""

    def certain(self, spacing_s: float) -> bool:
        """Whether the stream was steady enough at the edges of the dark to tell when they were."""
        return self.within_s <= _HOLE * spacing_s / 2


def dark(sent_ns: Sequence[int], received: Iterable[int], strays: int = 0) -> Dark:
    """The dark in a stream of which frame i was sent at `sent_ns[i]`, and these were received. Its longest run of lost frames is the dark.

    It began after the last frame that came through before it, and before the first that was lost; and so its end. The middle of both is taken.
    A stream that begins or ends in the dark tells nothing certain.
    """
    sent = np.asarray(sent_ns, dtype=np.int64)
    there = np.zeros(len(sent) + 2, dtype=bool)
    there[0] = there[-1] = True
    there[1 + np.fromiter(received, dtype=np.int64)] = True
    lit = np.flatnonzero(there)
    runs = np.diff(lit) - 1
    longest = int(runs.argmax())
    lost, before, after = int(runs[longest]), int(lit[longest]) - 1, int(lit[longest + 1]) - 1
    if not lost:
        return Dark(0.0, float(np.diff(sent).max(initial=0)) / 1e9, 0, 0, strays)
    if before < 0 or after >= len(sent):
        return Dark(float(sent[-1] - sent[0]) / 1e9, inf, lost, int(runs.sum()) - lost, strays)
    least, most = sent[after - 1] - sent[before + 1], sent[after] - sent[before]
    return Dark((least + most) / 2e9, (most - least) / 2e9, lost, int(runs.sum()) - lost, strays)


@dataclass(frozen=True)
class Calibration:
    """Many moves of one switch, against the dark time asked of it."""

    ocs: str
    asked_s: float
    spacing_s: float
    """Between two frames, in the median."""
    moves: tuple[Dark, ...]

    @property
    def certain(self) -> tuple[Dark, ...]:
        """The moves during which the machine kept the stream steady."""
        return tuple(move for move in self.moves if move.certain(self.spacing_s))

    def seen_s(self, quantile: float) -> float:
        """Dark time, of those."""
        return float(np.quantile([move.seconds for move in self.certain], quantile))

    def error_s(self, quantile: float) -> float:
        """How far it is from what was asked, either way, of those."""
        return float(np.quantile([abs(move.seconds - self.asked_s) for move in self.certain], quantile))

    def to_json(self) -> dict[str, Any]:
        """Seconds; `uncertain` moves are those during which the machine held up the stream, and count in nothing else but `strays`."""
        figures = {
            f"{name}_p{round(100 * q)}_s": take(q)
            for name, take in (("dark", self.seen_s), ("error", self.error_s))
            for q in (0.5, 0.99)
            if self.certain
        }
        return {
            "ocs": self.ocs,
            "asked_s": self.asked_s,
            "spacing_s": self.spacing_s,
            "moves": len(self.moves),
            "uncertain": len(self.moves) - len(self.certain),
            **figures,
            "lost_besides": sum(move.lost_besides for move in self.certain),
            "strays": sum(move.strays for move in self.moves),
            "dark_s": [move.seconds for move in self.certain],
        }


def table(calibrations: Iterable[Calibration]) -> str:
    """The same for a person, in milliseconds."""
    lines = [f"{'':8}{'asked':>9}{'seen p50':>10}{'p99':>9}{'error p50':>11}{'p99':>8}{'moves':>7}  ms"]
    for each in calibrations:
        figures = (
            "".join(
                f"{1e3 * value:{width}.3f}"
                for value, width in (
                    (each.seen_s(0.5), 10),
                    (each.seen_s(0.99), 9),
                    (each.error_s(0.5), 11),
                    (each.error_s(0.99), 8),
                )
                if each.certain
            )
            if each.certain
            else f"{'the machine was too busy':>38}"
        )
        held = len(each.moves) - len(each.certain)
        said = f"  {held} more while the stream was held up" if held else ""
        lines.append(f"{each.ocs:8}{1e3 * each.asked_s:9.3f}{figures}{len(each.certain):7}{said}")
    return "\n".join(lines)
