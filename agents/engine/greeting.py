"""Greetings: the first bytes of a data connection name its ends and prove that it is expected."""

from __future__ import annotations

import hmac
import json
import struct
import zlib
from typing import NamedTuple

from moefabric.agents.engine.requests import RefusedError, parse_request
from moefabric.agents.engine.wire import VERSION, padding

HEAD = struct.Struct("!4sII52x")  # magic, length and crc32 of the JSON object that follows
LONGEST = 4096
_MAGIC = b"mfGr"


class Greeting(NamedTuple):
    """Names of a connection's ends, and the secrets of those who are to accept it.

    Attributes:
        sender: The server that opens the connection.
        receiver: The server that receives its transfers.
        path: The path's name.
        dscp: Mark of the receiver's packets.
        secret: The receiver's secret.
        relay: The server that sends transfers on; empty without one.
        relay_secret: The relay's secret.
    """

    sender: str
    receiver: str
    path: str
    dscp: int = 0
    secret: str = ""
    relay: str = ""
    relay_secret: str = ""

    def to_bytes(self) -> bytes:
        """Return the first bytes of the connection."""
        body = json.dumps({**self._asdict(), "version": VERSION}).encode()
        body += b" " * padding(len(body))
        return HEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body

    def check(self, name: str, secret: str) -> None:
        """Check that the sender may send to an agent, or over it.

        Args:
            name: The agent's server.
            secret: The agent's secret.

        Raises:
            RefusedError: if it looks for another agent, or doesn't know the secret.
        """
        if name not in (self.relay, self.receiver):
            raise RefusedError(f"it looks for {self.receiver}")
        given = self.relay_secret if name == self.relay else self.secret
        if not hmac.compare_digest(given.encode(errors="replace"), secret.encode()):
            raise RefusedError("its secret is wrong")


def body_length(head: bytes) -> int:
    """Return the length of a greeting's JSON object.

    Raises:
        RefusedError: if no greeting begins with these bytes.
    """
    magic, length, _ = HEAD.unpack(head)
    if magic != _MAGIC or not 0 < length <= LONGEST:
        raise RefusedError("it opened with something other than an agent's greeting")
    return int(length)


def parse_greeting(head: bytes, body: bytes) -> Greeting:
    """Return a greeting.

    Raises:
        RefusedError: if it is corrupt, malformed or of another version.
    """
    if zlib.crc32(body) != HEAD.unpack(head)[2]:
        raise RefusedError("its greeting is corrupt")
    try:
        fields = parse_request(body)
    except ValueError as error:
        raise RefusedError("its greeting is not JSON") from error
    version = fields.integer("version", 0, 1 << 32)
    if version != VERSION:
        raise RefusedError(f"it is of version {version}, not {VERSION}")
    sender, receiver, path = map(fields.text, ("sender", "receiver", "path"))
    dscp, secret = fields.integer("dscp", 0, 63), fields.text("secret")
    relay = fields.text("relay", ""), fields.text("relay_secret", "")
    return Greeting(sender, receiver, path, dscp, secret, *relay)
