"""Connections to a machine service: their greeting, their messages, and the streams of programs.

By the greeting, both ends prove that they know the service's secret. Neither sends it. What follows
is neither encrypted nor signed: the network between the machines is trusted.
"""

import asyncio
import hmac
import json
import secrets
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine

VERSION: Final = b"moefabric-machine-1"
LONGEST_LINE: Final = 64 << 20
"""Room for the wiring of the largest fabric."""
_GREETING_S: Final = 10.0
_NONCE_LETTERS: Final = 32
_REPLY_BYTES: Final = _NONCE_LETTERS + 64 + 1
"""A client's challenge, its proof and the end of the line."""

Message = dict[str, Any]
_PART_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("!cI")


class FrameKind(bytes, Enum):
    """Kinds of the frames of a program's streams."""

    INPUT = b"i"
    INPUT_END = b"e"
    SIGNAL = b"s"
    """Number of a signal, to a program."""
    OUTPUT = b"o"
    ERRORS = b"r"
    FILE = b"f"
    """Contents of a program's file."""
    STATUS = b"x"
    """Exit status of a program."""


@dataclass(frozen=True, eq=False)
class Connection:
    """End of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, machine: Machine) -> Self:
        """Return a connection to a machine's service.

        Raises:
            FabricError: names the machine, and what is wrong.
        """
        place = f"machine {machine.name} ({machine.address}:{machine.port})"
        try:
            async with asyncio.timeout(_GREETING_S):
                reader, writer = await asyncio.open_connection(
                    machine.address, machine.port, limit=LONGEST_LINE
                )
                version, _, challenge = (await reader.readline()).rstrip().partition(b" ")
                if version != VERSION:
                    raise FabricError(f"{place}: no machine service of this version answers")
                nonce = secrets.token_hex(_NONCE_LETTERS // 2).encode()
                writer.write(nonce + _proof(machine.secret, "head", challenge, nonce) + b"\n")
                answer = (await reader.readline()).rstrip()
        except TimeoutError:
            raise FabricError(f"{place}: no answer within {_GREETING_S:g} s") from None
        except OSError as error:
            raise FabricError(f"{place}: {error.strerror or error}") from error
        if not hmac.compare_digest(answer, _proof(machine.secret, "machine", challenge, nonce)):
            writer.close()
            raise FabricError(f"{place}: it has another secret")
        return cls(reader, writer)

    async def authenticate(self, secret: str) -> bool:
        """Return whether a client knows the secret; if it does, prove that this end does too."""
        challenge = secrets.token_hex(_NONCE_LETTERS // 2).encode()
        self.writer.write(b"%s %s\n" % (VERSION, challenge))
        try:
            async with asyncio.timeout(_GREETING_S):
                reply = await self.reader.readexactly(_REPLY_BYTES)
        except (TimeoutError, OSError, EOFError):
            return False
        client_nonce, proof = reply[:_NONCE_LETTERS], reply[_NONCE_LETTERS:-1]
        if not hmac.compare_digest(proof, _proof(secret, "head", challenge, client_nonce)):
            return False
        self.writer.write(_proof(secret, "machine", challenge, client_nonce) + b"\n")
        return True

    def write(self, message: Mapping[str, Any]) -> None:
        """Write a message as a line of JSON."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def read(self) -> Message:
        """Return the next message.

        Raises:
            EOFError: if the connection ends.
            ValueError: if the line isn't a JSON object.
        """
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection ended")
        try:
            message = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - as for other invalid lines
        return message

    async def request(self, message: Mapping[str, Any]) -> Message:
        """Write a message, and return the reply; raises FabricError if that is an error."""
        self.write(message)
        reply = await self.read()
        if "error" in reply:
            raise FabricError(reply["error"])
        return reply

    async def write_frame(self, kind: FrameKind, body: bytes = b"") -> None:
        """Write a frame, once the other end has room."""
        self.writer.write(_HEAD.pack(kind, len(body)) + body)
        await self.writer.drain()

    async def write_frames(self, kind: FrameKind, source: asyncio.StreamReader) -> None:
        """Write a program's output as frames of a kind, to its end."""
        while part := await source.read(_PART_BYTES):
            await self.write_frame(kind, part)

    async def read_frame(self) -> tuple[FrameKind, bytes]:
        """Return kind and body of the next frame.

        Raises:
            EOFError: If the connection ends.
            ValueError: If there is no such kind.
        """
        kind, length = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
        return FrameKind(kind), await self.reader.readexactly(length)

    async def join(self, other: "Connection") -> None:
        """Carry bytes between two connections until both directions have ended, then close both."""
        try:
            await asyncio.gather(_pump(self.reader, other.writer), _pump(other.reader, self.writer))
        finally:
            self.writer.close()
            other.writer.close()


def _proof(secret: str, end: str, challenge: bytes, nonce: bytes) -> bytes:
    """Return an end's proof of knowledge of the secret, for the challenges of both ends."""
    message = b" ".join((end.encode(), challenge, nonce))
    return hmac.new(secret.encode(), message, "sha256").hexdigest().encode()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()
