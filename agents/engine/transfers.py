"""Transfers: bytes to or from one peer by one path, in one collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents.engine.payload import Payload


class Transfer:
    """Bytes to or from one peer by one path, in one collective. `ok` is None until it has ended."""

    def __init__(self, collective: int, peer: str, path: str, sequence: int, size: int) -> None:
        self.collective, self.peer, self.path, self.sequence, self.bytes = (
            collective,
            peer,
            path,
            sequence,
            size,
        )
        self.ended: Callable[[], None] | None = None
        self.moved = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.ok: bool | None = None
        self.why = ""

    @property
    def key(self) -> tuple[int, str, str, int]:
        return self.collective, self.peer, self.path, self.sequence

    def end(self, why: str = "") -> None:
        """It has ended, well if there is nothing to say."""
        if self.ok is None:
            self.ok, self.why = not why, why
            if self.ended is not None:
                self.ended()

    def told(self) -> dict[str, Any]:
        """As the control channel is told."""
        return {
            "peer": self.peer, "path": self.path, "bytes": self.bytes, "first_ns": self.first_ns,
            "last_ns": self.last_ns, "ok": bool(self.ok), "why": self.why,
        }  # fmt: skip


class Send(Transfer):
    """A transfer that leaves. `last_ns` is when its last byte was given to the kernel, `acked_ns` when the receiver had verified all."""

    def __init__(
        self, collective: int, peer: str, path: str, sequence: int, size: int, rate_bps: float | None
    ) -> None:
        super().__init__(collective, peer, path, sequence, size)
        self.rate_bps = rate_bps
        self.acked_ns: int | None = None
        self.retransmits = 0
        self.framed = b""  # what is left of header or trailer
        self.payload: Payload | None = None
        self.trailing = False

    def told(self) -> dict[str, Any]:
        return {
            **super().told(),
            "acked_ns": self.acked_ns,
            "retransmits": self.retransmits,
            "rate_bps": self.rate_bps,
        }

    def missing(self) -> str:
        """What a deadline finds."""
        if self.last_ns is not None:
            return f"sent to {self.peer} by {self.path}, which did not acknowledge it before the deadline"
        return f"{self.moved} of {self.bytes} bytes sent to {self.peer} by {self.path} before the deadline"


class Receive(Transfer):
    """A transfer that arrives. `last_ns` is when its last byte was read."""

    def missing(self, *, connected: bool) -> str:
        """What a deadline finds."""
        if not connected:
            return f"{self.peer} has no connection to here by {self.path}"
        return (
            f"{self.moved} of {self.bytes} bytes had come from {self.peer} by {self.path} before the deadline"
        )
