"""Lines that fit measured points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LineFit:
    """Line that fits points by least squares.

    Attributes:
        slope: Seconds for each copy.
        intercept: Seconds without copies.
        determination: Part of the variance that the line explains (R²).
    """

    slope: float
    intercept: float
    determination: float

    def text(self, points: int) -> str:
        """Return the line in words."""
        each, start = 1e3 * self.slope, 1e3 * self.intercept
        return f"{points} points: {each:.3g} ms for each copy, {start:.3g} ms at none."


def fit_line(points: Sequence[tuple[float, float]]) -> LineFit:
    """Return the line that fits (copies, seconds) best."""
    copies, seconds = np.array(points).T
    slope, intercept = np.polyfit(copies, seconds, 1)
    left = seconds - slope * copies - intercept
    return LineFit(slope, intercept, 1 - float(left.var() / seconds.var()))
