"""Ports of an optical switch: administrative states and settings that clients write."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.ocs.cross_connects import Refusal, RefusedError, refused_ports
from moefabric.emulator.ocs.device_failures import ActiveFailures, OcsFailureKind
from moefabric.emulator.ocs.events import OcsEventKind


class Admin(Enum):
    """Administrative state of a port: its shutter is open, closed, or has failed."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    FAILED = "failed"


@dataclass(frozen=True)
class PortSettings:
    """Settings of a port, which have no effect on its light.

    Defaults and ranges follow the YANG module optical-switch of Polatis.
    """

    label: str = ""
    peer_port: str = ""
    wavelength_nm: float = 1550.0
    """1260..1640."""
    offset_db: float = 0.0
    """Added to the reading of the power monitor."""
    averaging: int = 4
    """1..8; 1 is about 10 ms."""
    low_alarm_dbm: float = -60.0
    degrade_alarm_dbm: float = -60.0
    high_alarm_dbm: float = 25.0


@dataclass(frozen=True)
class SystemSettings:
    """Settings of the switch as a whole.

    A new address is stored and shown, but the switch keeps the address that the fabric gave it.
    """

    name: str = ""
    startup: str = "preserve"
    ip: str = "0.0.0.0"  # noqa: S104 - a value to show; nothing listens on it
    gateway: str = "0.0.0.0"  # noqa: S104 - as above
    mask: str = "255.255.255.0"
    broadcast: str = "0.0.0.0"  # noqa: S104 - as above
    session_timeout_s: int = 0
    """Idle timeout of the sessions of admins; 0: none."""
    user_timeout_s: int = 0
    """Idle timeout of the sessions of other users; 0: none."""


@dataclass(frozen=True)
class Identity:
    """Identification of a switch."""

    vendor: str
    model: str
    serial: str
    firmware: str


class PortTable:
    """State of each port: shutter, failure, settings. Inputs are 1..N, outputs N+1..N+M.

    Methods that take port numbers raise RefusedError for unknown ports.
    """

    def __init__(self, size: Ports, failures: ActiveFailures, memory: Mapping[str, Any]) -> None:
        self.size, self.failures = size, failures
        self.closed: set[int] = set(memory.get("shut", ()))
        """Ports whose shutter is closed."""
        self.stored = {
            int(port): PortSettings(**fields) for port, fields in memory.get("settings", {}).items()
        }
        """Settings of the ports that clients wrote to."""

    @property
    def all(self) -> range:
        """The numbers of all ports."""
        return range(1, self.size.output_numbers.stop)

    @property
    def failed(self) -> frozenset[int]:
        """Ports that have failed."""
        return self.failures.ports(OcsFailureKind.PORT)

    def is_input(self, port: int) -> bool:
        """Return whether a port is an input."""
        return port in self.size.input_set

    def check(self, ports: Collection[int]) -> None:
        """Refuse unknown ports."""
        for port in ports:
            if port not in self.all:
                raise RefusedError(
                    Refusal.NO_SUCH_PORT, f"{port}: ports are 1..{self.all.stop - 1}"
                )

    def check_works(self, ports: Collection[int]) -> None:
        """Refuse ports that have failed."""
        if failed := sorted(set(ports) & self.failed):
            raise refused_ports(Refusal.FAILED, "out of order: port", failed)

    def check_open(self, ports: Collection[int]) -> None:
        """Refuse ports whose shutter is closed."""
        if closed := sorted(set(ports) & self.closed):
            raise refused_ports(Refusal.FAILED, "disabled: port", closed)

    def admin(self, port: int) -> Admin:
        """Return the administrative state of a port."""
        self.check([port])
        if port in self.failed:
            return Admin.FAILED
        return Admin.DISABLED if port in self.closed else Admin.ENABLED

    def settings(self, port: int) -> PortSettings:
        """Return the settings of a port."""
        self.check([port])
        return self.stored.get(port, PortSettings())

    def configure(self, ports: Collection[int], **changes: Any) -> None:
        """Write settings of ports (fields of PortSettings)."""
        for port in ports:
            self.stored[port] = replace(self.settings(port), **changes)
            self.failures.events.publish(OcsEventKind.SETTINGS, ports=(port,))
