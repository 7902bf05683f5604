"""Messages to and from the machine that carries out a run of a sweep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moefabric.core.resource_needs import ResourceNeeds

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

    @property
    def cores(self) -> int:
        """Whole cores."""
        return round(self.needs.cores)


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
