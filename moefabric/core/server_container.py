"""Containers in the place of emulated servers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NewContainer:
    """Container that is started for a fabric and removed with it.

    Attributes:
        image: its image.
        command: the command; empty for the image's own.
        cpus: CPUs that its processes may use together; None for all.
        memory_bytes: memory that its processes may use together; None for all.
        shared_memory_bytes: size of its /dev/shm; None for the engine's default.
        volumes: mounts, `source:target` or `source:target:ro`; the source is an absolute path or
            the name of a volume.
        environment: names and values of environment variables.
        user: user of its programs, `name` or `uid:gid`; empty for the image's.
    """

    image: str
    command: tuple[str, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    volumes: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    user: str = ""


@dataclass(frozen=True)
class ExistingContainer:
    """Container that runs already and keeps running; `name` is its name or ID."""

    name: str


ServerContainer = NewContainer | ExistingContainer
"""Container whose network namespace takes the place of an emulated server's."""
