"""Failures as the user writes them: what breaks, in which iteration and collective of it, and when it is mended."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from moefabric.failures import Failure, How, Kind, Planned
from moefabric.spec.part import Fault, Part
from moefabric.spec.quantities import DurationNs

Named = Annotated[str, StringConstraints(min_length=1)]


class ClearSpec(Part):
    """When it is mended: at the start of that iteration."""

    iteration: int = Field(ge=0)


class FailureSpec(Part):
    """Something that breaks `after` so much model time in a collective of an iteration (counted from 0), or in the iteration.

    `what` are NICs (`s0/e0`), optical NICs' ports of the OCS (`s0/o0`), OCSes (`ocs0`), GPUs (`s1/3`), servers (`s3`), controllers by region
    (`r0`; `how`: killed, or stopped until it is cleared). It breaks in every fabric that has it, or in those that are named.
    """

    kind: Literal["nic", "ocs-port", "ocs", "gpu", "server", "controller"]
    what: list[Named] = Field(min_length=1, max_length=64)
    iteration: int = Field(ge=0)
    collective: int | None = Field(default=None, ge=0)
    after: DurationNs = 0
    how: Literal["kill", "stop"] = "kill"
    clear: ClearSpec | None = None
    fabrics: list[str] = Field(default_factory=list)

    def planned(self) -> Planned:
        """The value."""
        failure = Failure(Kind(self.kind), tuple(self.what), How(self.how))
        cleared = self.clear.iteration if self.clear is not None else None
        return Planned(failure, self.iteration, self.collective, self.after, cleared)

    def faults(self, place: str, iterations: int) -> Iterator[Fault]:
        """What doesn't fit the job."""
        if self.iteration >= iterations:
            yield f"{place}.iteration", f"{self.iteration}: there are iterations 0 to {iterations - 1}"
        if self.clear is not None and self.clear.iteration <= self.iteration:
            yield (
                f"{place}.clear.iteration",
                f"{self.clear.iteration} is not after iteration {self.iteration}",
            )
        if self.how == "stop" and self.kind != "controller":
            yield f"{place}.how", f"a {self.kind} is not stopped, it fails"
        if self.how == "kill" and self.kind == "controller" and self.clear is not None:
            yield (
                f"{place}.clear",
                "a controller that was killed is started again at once: there is nothing to clear",
            )
