"""Kinds of pictures of a run, on its page and alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import bars, curves, diagrams, heat_maps, timelines
from moefabric.report.picture import Picture
from moefabric.report.summary import FabricSummary

Drawing = Callable[[Sequence[FabricSummary]], Markup]
"""Draws a picture of fabrics; empty if they have nothing to draw."""


DRAWINGS: Final[Mapping[str, Drawing]] = {
    "comparison": bars.comparison_bars,
    "timeline": lambda f: timelines.pipeline_timeline(f) or timelines.iteration_timeline(f),
    "layer": timelines.layer_timeline,
    "completion": curves.completion_cdf,
    "errors": curves.error_cdf,
    "reconfigurations": bars.reconfiguration_phases,
    "first_all_to_alls": bars.first_dispatch_bars,
    "failures": timelines.failure_timeline,
    "wiring": lambda f: next((drawn for *_, drawn in diagrams.wiring_diagrams(f)), Markup()),
    "demand": heat_maps.demand_picture,
    "loss": curves.loss_picture,
    "expert_loads": heat_maps.loads_picture,
    "light": timelines.light_over_time,
    "exposed": curves.exposed_picture,
    "circuits": lambda f: diagrams.circuit_chords(f[0].first_region),
}
"""Pictures by the names of their kinds."""


def picture(kind: str, fabrics: Sequence[FabricSummary]) -> Picture:
    """Draw one kind of picture of a run's fabrics.

    Args:
        kind: `comparison`, `timeline`, `layer`, `completion`, `errors`, `reconfigurations`,
            `first_all_to_alls`, `failures`, `light`, `exposed`, of a program that trained `loss`
            and `expert_loads`, or, of the first fabric, `wiring`, `demand` and `circuits`.

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
