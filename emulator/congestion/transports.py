"""Transports whose congestion control is a BPF program that a run loads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from moefabric.core.transport import TcpTransport
from moefabric.emulator.congestion.dctcp import dctcp


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
