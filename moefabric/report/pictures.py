"""Pictures of runs outside the page: SVG with a style of its own, for notebooks and files."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from markupsafe import Markup

from moefabric.config.atomic_file import write_whole
from moefabric.core.errors import SpecError
from moefabric.report import svg
from moefabric.report.circuit_chords import circuit_chords
from moefabric.report.comparison_bars import comparison_bars, first_dispatch_bars
from moefabric.report.completion_cdf import completion_cdf
from moefabric.report.demand_heatmap import demand_heatmap
from moefabric.report.error_cdf import error_cdf
from moefabric.report.failure_timeline import failure_timeline
from moefabric.report.light_over_time import light_over_time
from moefabric.report.pipeline_timeline import is_pipelined, pipeline_timeline
from moefabric.report.reconfiguration_phases import reconfiguration_phases
from moefabric.report.regions import first_region
from moefabric.report.server_timeline import iteration_timeline, layer_timeline
from moefabric.report.summary import FabricSummary, with_first_all_to_alls
from moefabric.report.training_section import exposed_picture, loads_picture, loss_picture
from moefabric.report.wiring_diagram import wiring_diagrams

_CLASS: Final = "moefabric-picture"
_SIZE: Final = re.compile(r'viewBox="0 0 (?P<width>[\d.]+) (?P<height>[\d.]+)"')
_MARGIN: Final = 16.0


@dataclass(frozen=True)
class Picture:
    """A picture that notebooks show by themselves.

    Attributes:
        svg: The text of a whole SVG file, with its style.
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg)} bytes of SVG)"

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        write_whole(Path(path), self.svg + "\n")


def _timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    pipeline = pipeline_timeline(fabrics)
    return pipeline or iteration_timeline([f for f in fabrics if not is_pipelined(f)])


def _first_all_to_alls(fabrics: Sequence[FabricSummary]) -> Markup:
    return first_dispatch_bars(with_first_all_to_alls(fabrics))


def _failures(fabrics: Sequence[FabricSummary]) -> Markup:
    return failure_timeline([failure for f in fabrics for failure in f.result.failures])


def _demand(fabrics: Sequence[FabricSummary]) -> Markup:
    fabric = first_region(fabrics[0])
    largest = max((size for row in fabric.demand for size in row), default=0.0)
    return demand_heatmap(fabric, largest)


_DRAWINGS: Final[dict[str, Callable[[Sequence[FabricSummary]], Markup]]] = {
    "comparison": comparison_bars,
    "timeline": _timeline,
    "layer": lambda fabrics: layer_timeline(fabrics)[0],
    "completion": completion_cdf,
    "errors": error_cdf,
    "reconfigurations": reconfiguration_phases,
    "first_all_to_alls": _first_all_to_alls,
    "failures": _failures,
    "wiring": lambda fabrics: next((d.picture for d in wiring_diagrams(fabrics)), Markup()),
    "demand": _demand,
    "loss": loss_picture,
    "expert_loads": loads_picture,
    "light": light_over_time,
    "exposed": exposed_picture,
    "circuits": lambda fabrics: circuit_chords(first_region(fabrics[0])),
}


def picture(kind: str, fabrics: Sequence[FabricSummary]) -> Picture:
    """Draw one kind of picture of a run's fabrics.

    Args:
        kind: `comparison`, `timeline`, `layer`, `completion`, `errors`, `reconfigurations`,
            `first_all_to_alls`, `failures`, `light`, `exposed`, of a program that trained `loss`
            and `expert_loads`, or, of the first fabric, `wiring`, `demand` and `circuits`.
        fabrics: The fabrics.

    Raises:
        SpecError: If there is no such kind, or the run has nothing to draw.
    """
    if kind not in _DRAWINGS:
        raise SpecError([("", f"{kind!r} is not one of {', '.join(_DRAWINGS)}")])
    drawn = _DRAWINGS[kind](fabrics) if fabrics else Markup()
    if not drawn:
        names = ", ".join(fabric.name for fabric in fabrics) or "the run"
        raise SpecError([(kind, f"{names}: the run has no such data to draw")])
    return Picture(styled(drawn))


def styled(drawn: Markup) -> str:
    """Return a chart of the page with the page's style, on a card, and with a margin."""
    size = _SIZE.search(drawn)
    assert size is not None
    width, height = float(size["width"]) + 2 * _MARGIN, float(size["height"]) + 2 * _MARGIN
    place = f"{-_MARGIN:g} {-_MARGIN:g} {width:g} {height:g}"
    head, _, rest = str(drawn).partition(">")
    head = _SIZE.sub(f'viewBox="{place}" class="{_CLASS}"', head)
    card = svg.rect(-_MARGIN, -_MARGIN, width, height, "picture-card", radius=10.0)
    return f"{head}><style>{_style()}</style>{card}{rest}"


@cache
def _style() -> str:
    """Return the style of charts, restricted to pictures: a notebook has other SVGs, too."""
    folder = files("moefabric.report")
    colours, charts = ((folder / f"{name}.css").read_text() for name in ("colours", "charts"))
    own = f"""
.{_CLASS} {{ font: 13px "Liberation Sans", Arial, sans-serif; fill: var(--ink); max-width: 100%; }}
.{_CLASS} .picture-card {{ fill: var(--card); }}
"""
    charts = re.sub(r"(?m)(^|(?<=\} )|(?<=, ))svg ", f".{_CLASS} ", charts)
    return colours.replace(":root", f".{_CLASS}") + own + charts
