"""Certificates with which both ends of a fabric's control connections prove who they are."""

import ssl
from dataclasses import dataclass

from moefabric.core.errors import ControlError


@dataclass(frozen=True)
class ControlTls:
    """Files of a certificate, its private key, and the CA that signs the peers' certificates.

    Attributes:
        certificate: Certificate in PEM, perhaps with the intermediate ones.
        key: Its private key in PEM, without a password.
        ca: Certificates in PEM that peers' certificates must lead to.
    """

    certificate: str
    key: str
    ca: str

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        """Return the context of one side; each side demands a certificate of the other.

        As in Open vSwitch, the CA alone decides who belongs to the fabric; names aren't compared.

        Raises:
            ControlError: If a file can't be used.
        """
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
