"""Errors of RESTCONF: a status, and an error-tag (RFC 8040, section 7)."""

from typing import Any

from moefabric.emulator.ocs.cross_connects import Refusal, RefusedError

STATUS = {
    "in-use": 409,
    "resource-denied": 409,
    "data-exists": 409,
    "data-missing": 409,
    "operation-failed": 500,
    "partial-operation": 500,
    "invalid-value": 400,
    "missing-element": 400,
    "unknown-element": 400,
    "bad-element": 400,
    "malformed-message": 400,
    "too-big": 413,
    "access-denied": 401,
    "operation-not-supported": 405,
}
"""Default status of an error-tag (RFC 8040, section 7)."""


class RestconfError(Exception):
    """A request is refused because of its data."""

    kind = "application"
    """The error-type."""

    def __init__(self, tag: str, message: str, status: int | None = None) -> None:
        self.tag, self.message = tag, message
        self.status = status or STATUS[tag]
        super().__init__(f"{self.status} {tag}: {message}")

    def body(self) -> dict[str, Any]:
        """Return the error as JSON."""
        error = {"error-type": self.kind, "error-tag": self.tag, "error-message": self.message}
        return {"ietf-restconf:errors": {"error": [error]}}


class ProtocolError(RestconfError):
    """A request is refused because of its message, before its data are read."""

    kind = "protocol"


TAGS = {
    Refusal.NO_SUCH_PORT: "invalid-value",
    Refusal.CONFLICT: "in-use",
    Refusal.NOT_CONNECTED: "data-missing",
    Refusal.MISMATCH: "invalid-value",
    Refusal.FAILED: "resource-denied",
    Refusal.DENIED: "resource-denied",
    Refusal.HARDWARE: "operation-failed",
}


def from_refusal(refused: RefusedError, *, partial: bool = False) -> RestconfError:
    """Return the error for a refused command; `partial` means that a part was executed."""
    return RestconfError("partial-operation" if partial else TAGS[refused.reason], str(refused))


def absent(name: str) -> RestconfError:
    """Return the error for a resource that does not exist."""
    return RestconfError("invalid-value", f"there is no {name[:64]}", 404)
