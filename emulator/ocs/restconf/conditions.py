"""Conditional requests (RFC 7232): what tells whether a resource has changed, and what a client makes depend on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from emulator.ocs.restconf.errors import RestconfError


@dataclass(frozen=True)
class Validators:
    """A resource's entity-tag, in its quotes; and when it was last changed, where that is known."""

    etag: str
    changed: str = ""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """As a response has them."""
        return (("ETag", self.etag), *((("Last-Modified", self.changed),) if self.changed else ()))


def unchanged(headers: Mapping[str, str], now: Validators) -> bool:
    """Whether a client that reads has this already."""
    if "if-none-match" in headers:
        return _matches(headers["if-none-match"], now.etag)
    return bool(now.changed) and _not_after(now.changed, headers.get("if-modified-since", ""))


def must_hold(headers: Mapping[str, str], now: Validators, *, there: bool) -> None:
    """RestconfError if a client that writes makes that depend on something else than what is."""
    if "if-match" in headers and not (there and _matches(headers["if-match"], now.etag)):
        raise RestconfError("operation-failed", "changed since: If-Match does not hold", kind="protocol")
    if "if-none-match" in headers and there and _matches(headers["if-none-match"], now.etag):
        raise RestconfError("operation-failed", "there already: If-None-Match does not hold", kind="protocol")
    since = headers.get("if-unmodified-since", "")
    if "if-match" not in headers and since and now.changed and not _not_after(now.changed, since):
        raise RestconfError(
            "operation-failed", "changed since: If-Unmodified-Since does not hold", kind="protocol"
        )


def _matches(written: str, etag: str) -> bool:
    """`*`, or a list of tags. Public clients leave the quotes out."""
    told = [one.strip().removeprefix("W/").strip('"') for one in written.split(",")]
    return "*" in told or etag.strip('"') in told


def _not_after(changed: str, since: str) -> bool:
    try:
        return parsedate_to_datetime(changed) <= parsedate_to_datetime(since)
    except (ValueError, TypeError, IndexError, OverflowError):
        return False  # what is no date is no condition
