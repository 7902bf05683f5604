"""Greeting of a connection to a machine service: both ends prove that they know its secret.

Neither sends the secret. What follows is neither encrypted nor signed: the network between the
machines is trusted.
"""

import asyncio
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.machines import Machine

VERSION: Final = b"moefabric-machine-1"
LONGEST_LINE: Final = 64 << 20
"""Room for the wiring of the largest fabric."""
_GREETING_S: Final = 10.0
_NONCE_LETTERS: Final = 32
_REPLY_BYTES: Final = _NONCE_LETTERS + 64 + 1
"""A client's challenge, its proof and the end of the line."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(machine: Machine) -> Connection:
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
            own = secrets.token_hex(_NONCE_LETTERS // 2).encode()
            writer.write(own + _proof(machine.secret, "head", challenge, own) + b"\n")
            answer = (await reader.readline()).rstrip()
    except TimeoutError:
        raise FabricError(f"{place}: no answer within {_GREETING_S:g} s") from None
    except OSError as error:
        raise FabricError(f"{place}: {error.strerror or error}") from error
    if not hmac.compare_digest(answer, _proof(machine.secret, "machine", challenge, own)):
        writer.close()
        raise FabricError(f"{place}: it has another secret")
    return reader, writer


async def authenticate(connection: Connection, secret: str) -> bool:
    """Return whether a client knows the secret; if it does, prove that this end does too."""
    reader, writer = connection
    challenge = secrets.token_hex(_NONCE_LETTERS // 2).encode()
    writer.write(b"%s %s\n" % (VERSION, challenge))
    try:
        async with asyncio.timeout(_GREETING_S):
            reply = await reader.readexactly(_REPLY_BYTES)
    except (TimeoutError, OSError, EOFError):
        return False
    client_nonce, proof = reply[:_NONCE_LETTERS], reply[_NONCE_LETTERS:-1]
    if not hmac.compare_digest(proof, _proof(secret, "head", challenge, client_nonce)):
        return False
    writer.write(_proof(secret, "machine", challenge, client_nonce) + b"\n")
    return True


def _proof(secret: str, end: str, challenge: bytes, own: bytes) -> bytes:
    """Return an end's proof of knowledge of the secret, for the challenges of both ends."""
    message = b" ".join((end.encode(), challenge, own))
    return hmac.new(secret.encode(), message, "sha256").hexdigest().encode()


def write_message(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Write a message as a line of JSON."""
    writer.write(json.dumps(message).encode() + b"\n")


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next message.

    Raises:
        EOFError: if the connection ends.
        ValueError: if the line isn't a JSON object.
    """
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection ended")
    return dict(json.loads(line))
