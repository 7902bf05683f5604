"""Certificates with which both ends of a fabric's control connections prove who they are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from moefabric.core.errors import ControlError
from moefabric.core.ocs import Spelling

if TYPE_CHECKING:
    import ssl

_Path = Annotated[str, Spelling("/.*", "an absolute path")]


@dataclass(frozen=True)
class ControlTls:
    """TLS of the OpenFlow connections. All programs of the control plane use the same files."""

    certificate: _Path
    """Absolute path of a certificate in PEM."""
    key: _Path
    """Absolute path of its private key in PEM, without a password."""
    ca: _Path
    """Absolute path of the CA's certificate in PEM. Whoever has a certificate of this CA may
    control switches, or be one."""

    def context(self, *, server_side: bool) -> "ssl.SSLContext":
        """Return the context of one side; each side demands a certificate of the other.

        As in Open vSwitch, the CA alone decides who belongs to the fabric; names aren't compared.

        Raises:
            ControlError: If a file can't be used.
        """
        import ssl  # takes 0.8 MB, in each process that knows a wiring

        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.ca)
        except OSError as error:  # ssl.SSLError is one, too
            files = f"{self.certificate}, {self.key}, {self.ca}"
            reason = error.strerror or error
            raise ControlError(f"control_tls: {files}: {reason}: give files in PEM") from error
        return context
