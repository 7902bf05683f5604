"""Proof, over OpenFlow, that a switch belongs to the controller's fabric.

After its hello, a controller sends a challenge: an experimenter message with random bytes. Before
it answers the features request, the switch returns a proof: its datapath id, and a keyed hash
(HMAC-SHA256, RFC 2104) of the random bytes and the id. The key is the fabric's token, which never
crosses the connection. A controller that sends no challenge gets no proof.
"""

import hashlib
import hmac
import struct
from typing import Final

EXPERIMENTER: Final = 0x00026D66
"""Experimenter id: an OUI that is locally administered (OpenFlow 1.3.5, 7.5.5; IEEE 802)."""
CHALLENGE, PROOF = 1, 2
"""Experimenter types of the two messages."""
CHALLENGE_HEAD: Final = struct.pack("!II", EXPERIMENTER, CHALLENGE)
PROOF_HEAD: Final = struct.pack("!II", EXPERIMENTER, PROOF)
"""Starts of the bodies of the two messages."""
CHALLENGE_BYTES: Final = 32
_PURPOSE: Final = b"moefabric switch"
_ID_BYTES: Final = 8


def proof(token: str, challenge: bytes, datapath_id: int) -> bytes:
    """Return the proof of a switch.

    Args:
        token: The fabric's token.
        challenge: The controller's random bytes.
        datapath_id: The switch's datapath id.
    """
    identity = datapath_id.to_bytes(_ID_BYTES)
    digest = hmac.digest(token.encode(), _PURPOSE + challenge + identity, hashlib.sha256)
    return identity + digest


def proved_id(token: str, challenge: bytes, received: bytes) -> int | None:
    """Return the datapath id that a received proof is for; None if it proves nothing."""
    datapath_id = int.from_bytes(received[:_ID_BYTES])
    if len(received) < _ID_BYTES:
        return None
    expected = proof(token, challenge, datapath_id)
    return datapath_id if hmac.compare_digest(expected, received) else None
