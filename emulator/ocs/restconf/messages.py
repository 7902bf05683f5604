"""Requests and responses, independent of the HTTP transport."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from moefabric.core.ocs import Group
from moefabric.emulator.ocs.restconf.encoding import JSON, XML, to_json, to_xml
from moefabric.emulator.ocs.restconf.errors import ProtocolError

JSON_TYPES = (JSON, "application/json", "text/json")
XML_TYPES = (XML, "application/xml", "text/xml")
ANY_TYPES = ("*/*", "application/*", "")


@dataclass(frozen=True)
class Request:
    """A request. Names of header fields are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    user: str = ""
    """The authenticated user."""
    group: Group = "view"

    @property
    def path(self) -> str:
        """The path of the target."""
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query of the target, by name."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def media(self) -> str:
        """JSON or XML, whichever the client prefers; RestconfError if it accepts neither."""
        if self.accepted is None:
            raise ProtocolError("invalid-value", f"{JSON} and {XML} can be had", 406)
        return self.accepted

    @property
    def accepted(self) -> str | None:
        """JSON or XML, whichever the client prefers; None if it accepts neither."""
        for media_range in self.headers.get("accept", "*/*").split(","):
            kind = media_range.partition(";")[0].strip().lower()
            if kind in JSON_TYPES or kind in ANY_TYPES:
                return JSON
            if kind in XML_TYPES:
                return XML
        return None


@dataclass(frozen=True)
class Response:
    """A response; if `settles` is true, it is sent when all light has settled."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    settles: bool = False

    @property
    def reason(self) -> str:
        """The reason phrase of the status."""
        return HTTPStatus(self.status).phrase


def encode(document: Any, media: str) -> bytes:
    """Return a body in JSON or XML."""
    return to_xml(document) if media == XML else to_json(document)
