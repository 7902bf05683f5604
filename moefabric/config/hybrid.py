"""Hybrid runs as users write them: the regions that are emulated in a cluster that is modelled."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from moefabric.config.section import InputError, Section, Text


class HybridSpec(Section):
    """Emulation of some regions; all others exist in the model only."""

    emulated: list[Text] = Field(min_length=1)
    """Names of the emulated regions: `r0`, `r1` and so on."""
    background: Literal["replayed", "average", "none"] = "replayed"
    """Rates of the flows of modelled regions on links that emulated regions use: those of the model
    over time, their average over an iteration, or no flows. The latter two show what is missed
    without the first."""

    def region_errors(self, regions: int) -> Iterator[InputError]:
        """Yield an error for each name that no region of the job has."""
        for number, name in enumerate(self.emulated):
            if name not in {f"r{index}" for index in range(regions)}:
                remedy = f"give r0 to r{regions - 1}"
                yield f"hybrid.emulated[{number}]", f"{name}: there is no such region; {remedy}"
