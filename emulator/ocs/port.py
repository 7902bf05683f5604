"""A port of an optical switch, as its users see and set it."""

from dataclasses import dataclass
from enum import Enum


class Admin(Enum):
    """Whether a port is in use: its shutter's place, if it isn't out of order."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    FAILED = "failed"


class Tuning(Enum):
    """How far a port's light is (the states of SONiC-OCS)."""

    BLOCKED = "blocked"
    """Joined to nothing, or disabled."""
    TUNING = "tuning"
    """Joined, and dark until it has settled."""
    TUNED = "tuned"
    FAILED = "failed"


@dataclass(frozen=True)
class PortSettings:
    """What a user may write beside a port; nothing of it moves light. Defaults and ranges after Polatis' YANG (optical-switch)."""

    label: str = ""
    peer_port: str = ""
    wavelength_nm: float = 1550.0
    """1260..1640."""
    offset_db: float = 0.0
    """Added to what the power monitor reads."""
    averaging: int = 4
    """1..8; 1 is about 10 ms."""
    attenuation: str = "NONE"
    """NONE, ABSOLUTE, RELATIVE, CONVERGED, MAXIMUM or FIXED."""
    attenuation_db: float = 0.0
    reference: int | None = None
    low_alarm_dbm: float = -60.0
    degrade_alarm_dbm: float = -60.0
    high_alarm_dbm: float = 25.0


@dataclass(frozen=True)
class SystemSettings:
    """What a user may write about the switch as a whole. A new address is noted and shown; the fabric's own stays."""

    name: str = ""
    startup: str = "preserve"
    ip: str = "0.0.0.0"  # noqa: S104 - an address to show, nothing listens there
    gateway: str = "0.0.0.0"  # noqa: S104 - as above
    mask: str = "255.255.255.0"
    broadcast: str = "0.0.0.0"  # noqa: S104 - as above
    session_timeout_s: int = 0
    """How long a session of an admin may be silent; 0: for ever."""
    user_timeout_s: int = 0
    """How long that of another user may be."""


@dataclass(frozen=True)
class Identity:
    """Who a switch says it is."""

    vendor: str
    model: str
    serial: str
    firmware: str
