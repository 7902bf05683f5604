"""Transports: the settings of the TCP connections by which agents carry flows."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

SEND_BUFFER_BYTES: Final = 512 * 1024
"""Bytes of a send buffer: more than a path's bandwidth-delay product, but few, so that bytes that
count as sent soon leave the host."""


class Transport(Protocol):
    """Settings of the agents' TCP connections."""

    @property
    def name(self) -> str:
        """The name that specifications use."""

    @property
    def paced(self) -> bool:
        """True if flows are paced at the rates of the plan; if not, congestion control sets them.

        Unpaced flows all start at once, and are not held to a plan when a run is judged.
        """

    @property
    def congestion_control(self) -> str:
        """Linux's name of the congestion control (`sysctl net.ipv4.tcp_available_...`)."""

    @property
    def send_buffer_bytes(self) -> int:
        """Send buffer of each connection."""

    def prepared(self) -> AbstractContextManager[str]:
        """Return a context in which connections can use the transport on this machine.

        The context loads a congestion control that the kernel lacks, and removes it at its end. It
        yields the name by which the kernel then knows the congestion control.

        Raises:
            UnsupportedError: On entry, if this machine can't; the message has the remedy.
        """


@dataclass(frozen=True)
class TcpTransport:
    """A transport that only sets values."""

    name: str
    congestion_control: str
    paced: bool = False
    send_buffer_bytes: int = SEND_BUFFER_BYTES

    def prepared(self) -> AbstractContextManager[str]:
        """Return a context that loads nothing: the kernel has the congestion control."""
        return nullcontext(self.congestion_control)


PACED: Final = TcpTransport("paced", "reno", paced=True)
"""Flows at the rates of the plan.

A paced flow needs no congestion control, and reno disturbs it little: without loss, reno's window
only grows. With cubic, HyStart ends slow start at the first queue (RFC 9406). Connections of an
emulated fabric have a window that is always open, where the kernel takes congestion controls in BPF
(`emulator.congestion.paced`).
"""
TCP: Final = TcpTransport("tcp", "cubic")
"""Linux's default (RFC 9438)."""
RENO: Final = TcpTransport("reno", "reno")
"""Halves its window at a loss (RFC 5681)."""
BBR: Final = TcpTransport("bbr", "bbr")
"""Paces each connection by its own estimate of the bottleneck (needs the module tcp_bbr)."""
