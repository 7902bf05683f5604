"""Heat: how much a cell of a picture stands for, by its opacity, and the scale that says so."""

from markupsafe import Markup

from moefabric.report import svg

_FAINTEST = 0.06
_STEPS, _STEP, _HEIGHT = 24, 3, 9


def opacity(share: float) -> float:
    """Of a cell that stands for this share, 0..1, of the most."""
    return _FAINTEST + (1 - _FAINTEST) * share


def scale(left: float, y: float, most: str) -> list[Markup]:
    """From 0 to `most`, in words, faintest to darkest; the 0 ends 7 left of the scale's steps."""
    steps = [
        svg.tag(
            "rect",
            x=left + k * _STEP,
            y=y,
            width=_STEP,
            height=_HEIGHT,
            class_="cell",
            fill_opacity=opacity(k / (_STEPS - 1)),
        )
        for k in range(_STEPS)
    ]
    end = left + _STEPS * _STEP
    return [
        *steps,
        svg.label(left - 7, y + _HEIGHT, "0", "tick", "end"),
        svg.label(end + 8, y + _HEIGHT, most, "tick"),
    ]
