"""Proof of a switch: it holds for one token, one challenge and one datapath id."""

import pytest

from moefabric.core.switch_proof import proof, proved_id

CHALLENGE = bytes(range(32))
PROOF = proof("secret", CHALLENGE, 5)


def test_controller_learns_the_datapath_id() -> None:
    assert proved_id("secret", CHALLENGE, PROOF) == 5


@pytest.mark.parametrize(
    ("token", "challenge", "received"),
    [
        ("other", CHALLENGE, PROOF),
        ("secret", bytes(32), PROOF),
        ("secret", CHALLENGE, (6).to_bytes(8) + PROOF[8:]),
        ("secret", CHALLENGE, PROOF[:-1]),
        ("secret", CHALLENGE, PROOF + b"\0"),
        ("secret", CHALLENGE, b""),
    ],
    ids=["token", "challenge", "id", "cut-off", "longer", "empty"],
)
def test_nothing_else_is_a_proof(token: str, challenge: bytes, received: bytes) -> None:
    assert proved_id(token, challenge, received) is None
