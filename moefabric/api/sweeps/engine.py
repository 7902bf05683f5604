"""Engines that carry out the runs of a sweep on one machine or many, and their messages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from moefabric.core.resource_needs import ResourceNeeds

Value = str | int | float | bool
"""A value of an axis, as tables and pictures have it."""
Mode = Literal["run", "train", "predict"]
"""`run` replays traffic and `train` trains a program, both on emulated fabrics."""


@dataclass(frozen=True)
class RunTask:
    """A run that any machine with moefabric can carry out.

    Attributes:
        id: Digest of everything on which the result depends, and of the repetition.
        title: Readable name.
        mode: What is done with the experiment.
        document: The keys of the experiment. Paths of input files start at the folder into which
            the archives are unpacked.
        inputs: Digests of the archives of input files.
        needs: Cores and memory that are reserved for it.
        version: Version of moefabric that has checked the experiment.
    """

    id: str
    title: str
    mode: Mode
    document: Mapping[str, Any]
    inputs: tuple[str, ...]
    needs: ResourceNeeds
    version: str


@dataclass(frozen=True)
class RunStarted:
    """An attempt has begun.

    Attributes:
        id: The run.
        node: Identity of the machine.
        host: Name of the machine.
    """

    id: str
    node: str
    host: str


@dataclass(frozen=True)
class RunEnded:
    """An attempt has ended.

    Attributes:
        id: The run.
        result: JSON of the result; empty if there is none.
        error: Why there is none.
        wall_s: Seconds that it took.
    """

    id: str
    result: str = ""
    error: str = ""
    wall_s: float = 0.0


RunEvent = RunStarted | RunEnded


class Engine(Protocol):
    """Carries runs out, each on a machine that has enough cores and memory free for it."""

    def check(self, needs: ResourceNeeds) -> None:
        """Check that some machine is large enough for a run.

        Raises:
            UnsupportedError: If none is; names what is missing.
        """

    def submit(self, task: RunTask, avoid: Collection[str] = ()) -> None:
        """Add an attempt at a run, which starts when resources are free.

        Args:
            avoid: Identities of machines to leave out, as long as there are others.
        """

    def next_event(self) -> RunEvent:
        """Wait until an attempt starts or ends. At least one must not have ended."""
