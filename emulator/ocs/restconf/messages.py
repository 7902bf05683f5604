"""Requests and responses as values, without the protocol that carries them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from emulator.ocs.restconf.encoding import JSON, XML, to_json, to_xml
from emulator.ocs.restconf.errors import RestconfError
from moefabric.ocs_manners import Group

JSONS = (JSON, "application/json", "text/json")
XMLS = (XML, "application/xml", "text/xml")
ANY = ("*/*", "application/*", "")


@dataclass(frozen=True)
class Request:
    """What a client asks. Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def accepted(self) -> str | None:
        """JSON or XML, as the client would have it; None if it wants neither."""
        for wanted in self.headers.get("accept", "*/*").split(","):
            kind = wanted.partition(";")[0].strip().lower()
            if kind in JSONS or kind in ANY:
                return JSON
            if kind in XMLS:
                return XML
        return None


@dataclass(frozen=True)
class Response:
    """What it is answered. `settles`: only when all light has settled."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    settles: bool = False

    @property
    def reason(self) -> str:
        """What the status means."""
        return HTTPStatus(self.status).phrase


@dataclass(frozen=True)
class Asked:
    """A request whose user is known, and what it is about."""

    request: Request
    user: str
    group: Group
    path: str
    query: Mapping[str, str]

    @property
    def method(self) -> str:
        """What is asked for."""
        return self.request.method

    @property
    def media(self) -> str:
        """JSON or XML, as the client would have it. RestconfError if it wants neither."""
        wanted = self.request.accepted
        if wanted is None:
            raise RestconfError("invalid-value", f"{JSON} and {XML} can be had", status=406, kind="protocol")
        return wanted


def written(told: Any, media: str) -> bytes:
    """A body."""
    return to_xml(told) if media == XML else to_json(told)
