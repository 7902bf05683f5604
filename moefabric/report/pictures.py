"""Kinds of pictures of a run, on its page and alone."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import bars, curves, diagrams, heat_maps, timelines
from moefabric.report.picture import Picture
from moefabric.report.regions import first_region
from moefabric.report.summary import FabricSummary, with_first_all_to_alls

Drawing = Callable[[Sequence[FabricSummary]], Markup]
"""Draws a picture of fabrics; empty if they have nothing to draw."""


def _iteration(fabrics: Sequence[FabricSummary]) -> Markup:
    return timelines.iteration_timeline([f for f in fabrics if not timelines.is_pipelined(f)])


def _failures(fabrics: Sequence[FabricSummary]) -> Markup:
    return timelines.failure_timeline([failure for f in fabrics for failure in f.result.failures])


def _demand(fabrics: Sequence[FabricSummary]) -> Markup:
    fabric = first_region(fabrics[0])
    largest = max((size for row in fabric.demand for size in row), default=0.0)
    return heat_maps.demand_heatmap(fabric, largest)


DRAWINGS: Final[Mapping[str, Drawing]] = MappingProxyType(
    {
        "comparison": bars.comparison_bars,
        "timeline": lambda fabrics: timelines.pipeline_timeline(fabrics) or _iteration(fabrics),
        "layer": lambda fabrics: timelines.layer_timeline(fabrics)[0],
        "completion": curves.completion_cdf,
        "errors": curves.error_cdf,
        "reconfigurations": bars.reconfiguration_phases,
        "first_all_to_alls": lambda f: bars.first_dispatch_bars(with_first_all_to_alls(f)),
        "failures": _failures,
        "wiring": lambda f: next((d.picture for d in diagrams.wiring_diagrams(f)), Markup()),
        "demand": _demand,
        "loss": curves.loss_picture,
        "expert_loads": heat_maps.loads_picture,
        "light": timelines.light_over_time,
        "exposed": curves.exposed_picture,
        "circuits": lambda fabrics: diagrams.circuit_chords(first_region(fabrics[0])),
    }
)
"""Pictures by the names of their kinds."""


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
    if kind not in DRAWINGS:
        raise SpecError([("", f"{kind!r} is not one of {', '.join(DRAWINGS)}")])
    drawn = DRAWINGS[kind](fabrics) if fabrics else Markup()
    if not drawn:
        names = ", ".join(fabric.name for fabric in fabrics) or "the run"
        raise SpecError([(kind, f"{names}: the run has no such data to draw")])
    return Picture.of(drawn)
