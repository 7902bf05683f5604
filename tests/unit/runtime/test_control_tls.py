"""Certificates of the control plane: each end demands one of the CA from the other."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from moefabric.core.errors import ControlError
from moefabric.runtime.control_tls import ControlTls
from tests.support.certificates import make_certificates


def handshake(client: ControlTls, server: ControlTls) -> list[str | None]:
    """Exchange the messages of a handshake, and return the protocols that the ends have agreed on.

    Raises:
        SSLError: If an end refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.context(server_side=False).wrap_bio(to_client, to_server),
        server.context(server_side=True).wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return [end.version() for end in ends]


def test_certificates_of_one_ca_fit(tmp_path: Path) -> None:
    own = make_certificates(tmp_path / "own")
    assert handshake(own, own) == ["TLSv1.3"] * 2


@pytest.mark.parametrize("foreign", ["client", "server"])
def test_end_with_a_certificate_of_another_ca_is_refused(tmp_path: Path, foreign: str) -> None:
    own, other = (make_certificates(tmp_path / name) for name in ("own", "other"))
    stranger = ControlTls(other.certificate, other.key, own.ca)
    ends = {"client": own, "server": own, foreign: stranger}
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(**ends)


@pytest.mark.parametrize("lost", ["certificate", "key", "ca"])
def test_missing_file_is_reported_in_one_line(tmp_path: Path, lost: str) -> None:
    files = {**vars(make_certificates(tmp_path / "own")), lost: "/nowhere.pem"}
    with pytest.raises(ControlError, match=r"^control_tls: .*/nowhere\.pem.*: give files in PEM$"):
        ControlTls(**files).context(server_side=True)
