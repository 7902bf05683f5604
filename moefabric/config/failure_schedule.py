"""Failures that an experiment injects, as users write them."""

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema

from moefabric.config.section import DurationNs, InputError, Section, Text
from moefabric.core.failure_kinds import INJECTABLE, FailureKind
from moefabric.core.failures import ControllerFailureMode, Failure, PlannedFailure

_INJECTABLE: Final = core_schema.no_info_after_validator_function(
    FailureKind, core_schema.literal_schema([kind.value for kind in INJECTABLE])
)


class ClearSpec(Section):
    """When a failure is cleared."""

    iteration: int = Field(ge=0)
    """The failure is cleared at the start of this iteration."""


class FailureSpec(Section):
    """Failure of one or more components in an iteration of the job."""

    kind: Annotated[FailureKind, GetPydanticSchema(lambda _source, _handler: _INJECTABLE)]
    """Kind of the components."""
    targets: list[Text] = Field(min_length=1, max_length=64)
    """Components that fail: NICs (`s0/e0`), ports of the OCS by their NIC (`s0/o0`), OCSes
    (`ocs0`), GPUs (`s1/3`), servers (`s3`), or controllers by their region (`r0`)."""
    iteration: int = Field(ge=0)
    """Iteration in which the components fail, counted from 0."""
    collective: int | None = Field(default=None, ge=0)
    """Collective of the iteration in which the components fail, counted from 0. Default: the
    iteration's start."""
    after: DurationNs = 0
    """Model time between the start of the collective or iteration and the failure."""
    mode: Annotated[ControllerFailureMode, Field(strict=False)] = ControllerFailureMode.KILL
    """How a controller fails: `kill` ends its process, which is started again; `stop` suspends it
    until the clearing."""
    clear: ClearSpec | None = None
    """When the failure is cleared. Default: never."""
    fabrics: list[str] = Field(default_factory=list)
    """Names of the fabrics in which the components fail. Default: every fabric that has them."""

    def build(self) -> PlannedFailure:
        """Return the planned failure that this section describes."""
        failure = self._failure
        cleared = self.clear.iteration if self.clear is not None else None
        return PlannedFailure(failure, self.iteration, self.collective, self.after, cleared)

    @property
    def _failure(self) -> Failure:
        return Failure(self.kind, tuple(self.targets), self.mode)

    def errors(self, place: str, iterations: int) -> Iterator[InputError]:
        """Yield the errors of the section in a job of `iterations` iterations."""
        if self.iteration >= iterations:
            message = f"{self.iteration} is none of the iterations 0 to {iterations - 1}"
            yield f"{place}.iteration", message
        if self.clear is not None and self.clear.iteration <= self.iteration:
            message = f"{self.clear.iteration} is not after iteration {self.iteration}"
            yield f"{place}.clear.iteration", message
        if not self.kind.traits.restarts and self.mode is ControllerFailureMode.STOP:
            message = f"only controllers can be stopped: leave mode out for a {self.kind}"
            yield f"{place}.mode", message
        if self._failure.restarts and self.clear is not None:
            yield f"{place}.clear", "a killed controller is started again at once: leave clear out"
