"""Transports whose congestion control is a BPF program that a run loads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from moefabric.core.transport import TcpTransport
from moefabric.emulator.congestion.astraea import OWN_WEIGHTS, Actor
from moefabric.emulator.congestion.dctcp import dctcp
from moefabric.emulator.congestion.window_policy import astraea


@dataclass(frozen=True, kw_only=True)
class LoadedTransport(TcpTransport):
    """A transport with a congestion control that the kernel lacks.

    Attributes:
        load: Registers it and yields its name until the end of the context.
    """

    load: Callable[[], AbstractContextManager[str]]

    def prepared(self) -> AbstractContextManager[str]:
        """Return a context in which the congestion control is registered."""
        return self.load()


DCTCP: Final = LoadedTransport(name="dctcp", congestion_control="dctcp", load=dctcp)
"""Cuts its window by half the share of bytes that met a queue's threshold (RFC 8257)."""


def astraea_transport(weights: str = str(OWN_WEIGHTS)) -> LoadedTransport:
    """Return Astraea, whose windows a policy decides that learned fairness.

    Args:
        weights: A file of the actor's weights (`Actor.load`); default: weights of our own.

    Raises:
        SpecError: The weights can't be used.
    """
    path = Path(weights)
    Actor.load(path)
    return LoadedTransport(
        name="astraea", congestion_control="astraea", load=partial(astraea, path)
    )
