"""Containers in the place of emulated servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, MinLen

from moefabric.core.ocs import Spelling

_Text = Annotated[str, MinLen(1)]
_MOUNT = Spelling("[^:]+:/[^:]*(:(ro|rw))?", "a mount such as ./data:/data or ./data:/data:ro")


@dataclass(frozen=True)
class NewContainer:
    """Container that `up` starts as a server and `down` removes."""

    image: _Text
    """Image of the container. It is pulled if the engine doesn't have it."""
    command: tuple[_Text, ...] = ()
    """Command that runs as long as the server. Default: the image's own."""
    cpus: Annotated[float, Ge(0.01)] | None = None
    """CPUs that the server's programs and its agent may use together. Default: all."""
    memory_bytes: int | None = None
    """Memory that the server's programs and its agent may use together. Default: all."""
    shared_memory_bytes: int | None = None
    """Size of /dev/shm. Default: the engine's, 64 MB."""
    volumes: tuple[Annotated[str, _MOUNT], ...] = ()
    """Mounts such as `./data:/data:ro`. A relative path starts at the folder of the file; a name
    without a slash is that of a volume.

    Relative paths are resolved when the file is read.
    """
    environment: Mapping[_Text, str] = field(default_factory=dict)
    """Environment variables."""
    user: _Text | None = None
    """User of the server's programs, `name` or `uid:gid`. Default: the image's."""


@dataclass(frozen=True)
class ExistingContainer:
    """Container that runs already and keeps running; `name` is its name or ID."""

    name: str


ServerContainer = NewContainer | ExistingContainer
"""Container whose network namespace takes the place of an emulated server's."""
