"""Transfers: bytes to or from one peer by one path, in one collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from moefabric.agents.engine.payload import Position


class TransferKey(NamedTuple):
    """Identity of a transfer at its server.

    `sequence` numbers the transfers of a collective between two servers by one path; both ends
    count alike.
    """

    collective: int
    peer: str
    path: str
    sequence: int


class Transfer:
    """A transfer. `ok` is None until it has ended.

    `corrupt` says that all bytes arrived, but not those that were sent.

    Args:
        payload: Bytes of ranks; None for a pattern, which follows when the transfer begins.
    """

    def __init__(self, key: TransferKey, size: int, payload: Position | None = None) -> None:
        self.key, self.bytes, self.payload = key, size, payload
        self.collective, self.peer, self.path, self.sequence = key
        self.on_end: Callable[[], None] | None = None
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.ok: bool | None = None
        self.why = ""
        self.corrupt = False

    @property
    def moved(self) -> int:
        """Number of bytes that have moved."""
        return 0 if self.payload is None else self.payload.position

    def end(self, why: str = "", *, corrupt: bool = False) -> None:
        """End the transfer, with success if `why` is empty; later calls do nothing."""
        if self.ok is None:
            self.ok, self.why, self.corrupt = not why, why, corrupt
            if self.on_end is not None:
                self.on_end()

    def to_json(self) -> dict[str, Any]:
        """Return the transfer's part of the collective's report."""
        return {
            "first_ns": self.first_ns, "last_ns": self.last_ns, "moved": self.moved,
            "ok": bool(self.ok), "why": self.why, "corrupt": self.corrupt,
        }  # fmt: skip


class Send(Transfer):
    """A transfer to a peer. `last_ns` is when the kernel took the last byte.

    `acknowledged_ns` is when the peer's agent had said that it has all bytes.

    Args:
        rate_bps: Its rate; None for unlimited.
    """

    def __init__(
        self, key: TransferKey, size: int, rate_bps: float | None, payload: Position | None = None
    ) -> None:
        super().__init__(key, size, payload)
        self.rate_bps = rate_bps
        self.retransmits = 0
        self.acknowledged_ns: int | None = None
        self.frame = b""  # unsent bytes of the header, with the first payload, or of the trailer
        self.opening = 0  # bytes of the first payload
        self.in_trailer = False

    def to_json(self) -> dict[str, Any]:
        """Return the transfer's part of the collective's report."""
        sent = {"retransmits": self.retransmits, "acknowledged_ns": self.acknowledged_ns}
        return {**super().to_json(), **sent}

    def deadline_error(self) -> str:
        """Describe the bytes that were not transferred by the deadline."""
        way = f"to {self.peer} by {self.path}"
        if self.last_ns is not None:
            return f"sent {way}, which did not acknowledge it before the deadline"
        return f"{self.moved} of {self.bytes} bytes sent {way} before the deadline"


class Receive(Transfer):
    """A transfer from a peer. `last_ns` is when the last byte was read."""

    def size_fault(self, sent: int) -> str:
        """Return what is wrong if the peer sends this number of bytes; empty if that is right."""
        fault = f"{sent} bytes were sent where {self.bytes} are expected"
        return fault if sent != self.bytes else ""

    def deadline_error(self, *, connected: bool) -> str:
        """Describe the bytes that were not transferred by the deadline."""
        if not connected:
            return f"{self.peer} has no connection to here by {self.path}"
        progress = f"{self.moved} of {self.bytes} bytes had come from {self.peer}"
        return f"{progress} by {self.path} before the deadline"
