"""What RESTCONF says when it says no: a status, and errors in the words of RFC 8040, section 7."""

from typing import Any

from emulator.ocs.matching import Refusal, RefusedError

STATUS = {
    "in-use": 409,
    "lock-denied": 409,
    "resource-denied": 409,
    "data-exists": 409,
    "data-missing": 409,
    "operation-failed": 412,
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
"""The status that goes with an error-tag, unless another is given (RFC 8040, section 7)."""


class RestconfError(Exception):
    """A request that is not done."""

    def __init__(
        self, tag: str, message: str, *, status: int | None = None, path: str = "", kind: str = "application"
    ) -> None:
        self.tag, self.message, self.path, self.kind = tag, message, path, kind
        self.status = status or STATUS[tag]
        super().__init__(f"{self.status} {tag}: {message}")

    def body(self) -> dict[str, Any]:
        """As JSON has it, and XML after it."""
        error = {"error-type": self.kind, "error-tag": self.tag}
        if self.path:
            error["error-path"] = self.path
        return {"ietf-restconf:errors": {"error": [{**error, "error-message": self.message}]}}


REFUSALS = {
    Refusal.NO_SUCH_PORT: ("invalid-value", 400),
    Refusal.CONFLICT: ("in-use", 409),
    Refusal.NOT_CONNECTED: ("data-missing", 409),
    Refusal.MISMATCH: ("invalid-value", 400),
    Refusal.FAILED: ("resource-denied", 409),
    Refusal.DENIED: ("resource-denied", 409),
    Refusal.HARDWARE: ("operation-failed", 500),
}


def refused(wrong: RefusedError, *, partly: bool = False) -> RestconfError:
    """What the switch refuses, as RESTCONF says it; `partly`: though some of it was done."""
    tag, status = ("partial-operation", 500) if partly else REFUSALS[wrong.kind]
    return RestconfError(tag, str(wrong), status=status)
