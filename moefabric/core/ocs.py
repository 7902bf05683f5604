"""Values of an optical circuit switch: its profile, its management dialects, and its control.

Where manuals are silent, the behaviour is a setting with a default. If a default is more than a
guess, its description names what it follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Self

Group = Literal["admin", "user", "view"]
"""Rights of a user: everything; all but changing the system and its users; reading only.

The names are those of the YANG module polatis-switch (`group`).
"""


@dataclass(frozen=True)
class UserAccount:
    """An account that may log in; the password may be empty."""

    name: str
    password: str = ""
    group: Group = "admin"


ACCOUNTS = (UserAccount("admin", "root"), UserAccount("root", "root"))
"""The accounts with which public drivers log in."""

CODES = {
    "no such port": "IDNV",
    "conflict": "SNVS",
    "not connected": "SNVS",
    "mismatch": "IIAC",
    "failed": "SROF",
    "denied": "SROF",
    "hardware": "SROF",
    "not logged in": "PLNA",
    "no such command": "ICNV",
}
"""TL1 error codes by kind of refusal.

`IDNV` for a port is known; the others are what GR-831-CORE offers for such a case.
"""


@dataclass(frozen=True)
class Tl1Dialect:
    """The TL1 dialect of a switch."""

    login: bool = True
    """Whether all commands but `ACT-USER` need a log-in."""
    completes: Literal["settled", "accepted"] = "settled"
    """When `COMPLD` is sent: once the command's circuits have settled, or at once."""
    slow_s: float = 2.0
    """Seconds after which an unfinished command is acknowledged first (GR-831-CORE)."""
    slow_ack: Literal["IP", "PF", "OK", "NA"] = "IP"
    """Code of that acknowledgement."""
    outstanding: int = 64
    """Most commands of a session that may wait for light; further ones are refused with `RL`."""
    prompt: str = ""
    """Sent after each `;` that ends a message."""
    messages: bool = True
    """Whether a logged-in session receives autonomous messages until it declines them."""
    timeout_unit_s: int = 60
    """Unit of `ED-EQPT::TIMEOUT`, which takes 0..60; 0 is never."""
    timed_out: Literal["log out", "hang up"] = "log out"
    """What happens to a session that was silent too long."""
    label_chars: int = 20
    """The longest port label that `ED-PORT-LABEL` takes; 25 are known to be too many."""
    codes: Mapping[str, str] = field(default_factory=lambda: dict(CODES), hash=False)
    """Error codes by kind of refusal; missing ones are those of `CODES`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", {**CODES, **self.codes})


@dataclass(frozen=True)
class RestconfDialect:
    """The RESTCONF dialect of a switch."""

    root: str = "/api"
    """Path of the API root."""
    revision: str = "2018-03-22"
    """Revision of the YANG module optical-switch.

    Cross-connects are a list of `pairs` before 2017-08-04 and of `pair` since. Both names are
    understood; this revision's is sent if the client has named none.
    """
    completes: Literal["settled", "accepted"] = "settled"
    """When a change of cross-connects or ports is answered: once settled, or at once."""
    post_kept_s: float | None = None
    """Seconds for which a cross-connect made by POST is kept; None is for ever.

    Some users report about 5 s, others that it stays.
    """
    idle_s: float = 60.0
    """Seconds between two requests after which a silent connection is closed."""
    whole_lists: bool = True
    """Whether PATCH and DELETE accept a list without a key, as public clients of Polatis expect."""


PLACEHOLDER = "{size}"
"""Stands for `16x16` and the like in a profile's model."""


@dataclass(frozen=True)
class SettleTime:
    """The time for which a port is dark after a command, in ns.

    The k-th cross-connect of a command (from 0) has light after `fixed + jitter + k * serial`. A
    command for several cross-connects takes `bulk` longer. A command that must remove older
    cross-connects first, since it needs their ports, takes `conflict` longer.
    """

    fixed_ns: int = 25_000_000
    jitter_ns: int = 0
    """Half-width of `uniform`, standard deviation of `normal`, mean of `exponential`."""
    jitter: Literal["uniform", "normal", "exponential"] = "uniform"
    serial_ns: int = 0
    bulk_ns: int = 0
    bulk: Literal["each", "together"] = "each"
    """Whether each cross-connect of a command has light when it settles, or all with the last."""
    conflict_ns: int = 0
    jitter_per: Literal["connection", "command"] = "connection"
    """Whether each cross-connect has its own jitter, or all of a command share one."""

    @property
    def is_fixed(self) -> bool:
        """Whether every command settles in `fixed_ns`."""
        return not any((self.jitter_ns, self.serial_ns, self.bulk_ns, self.conflict_ns))

    def scaled(self, factor: float) -> Self:
        """Return all times multiplied by a factor."""
        times = {
            name: round(value * factor)
            for name, value in vars(self).items()
            if name.endswith("_ns")
        }
        return replace(self, **times)


@dataclass(frozen=True)
class OpticalLoss:
    """The loss between an input and an output, and the readings of power monitors."""

    typical_db: float = 1.0
    spread_db: float = 0.5
    """Greatest difference of a path's loss from the typical one; fixed by the seed."""
    launch_dbm: float = 0.0
    """Power that a transceiver sends into an input."""
    floor_dbm: float = -60.0
    """Reading of a port without light: the default of Polatis' low-power alarm."""
    sensitivity_dbm: float = -14.0
    """Least power that a receiver needs."""
    monitors: Literal["none", "inputs", "both"] = "both"
    """Which ports have a photodetector."""


@dataclass(frozen=True)
class DeviceProfile:
    """A kind of optical circuit switch."""

    name: str = "polatis"
    vendor: str = "Polatis"
    model: str = "N-OST-{size}-LU1-DMHNS"
    """Model name, with `{size}` where drivers look for `16x16`."""
    firmware: str = "6.5.2.18"
    ports: int | None = None
    """Inputs, and as many outputs; None is as many as the fabric needs."""
    settle: SettleTime = SettleTime()
    loss: OpticalLoss = OpticalLoss()
    startup: Literal["preserve", "volatile"] = "preserve"
    """Whether cross-connects survive a restart (Polatis YANG: MODE_PRESERVE, MODE_VOLATILE)."""
    boot_ns: int = 2_000_000_000
    """Duration of a reboot in ns; preserved cross-connects stay lit meanwhile."""
    busy: Literal["move", "refuse"] = "move"
    """What `add` does with a connected port: replace the older cross-connect, or refuse."""
    absent: Literal["refuse", "ignore"] = "refuse"
    """What disconnecting two ports does if they aren't connected."""
    shut: Literal["accept", "refuse"] = "accept"
    """What connecting a disabled port does: it is dark until it is enabled, or is refused.

    A failed port is always refused.
    """
    reset: Literal["clear", "keep"] = "clear"
    """What SCPI's `*rst` does to cross-connects."""
    errors: Literal["device", "client"] = "device"
    """Whether all clients share one SCPI error queue, or each has its own."""
    users: tuple[UserAccount, ...] = ACCOUNTS
    """Accounts at the start; others may be added while it runs."""
    tl1: Tl1Dialect = field(default_factory=Tl1Dialect)
    restconf: RestconfDialect = field(default_factory=RestconfDialect)

    def scaled(self, factor: float) -> Self:
        """Return the profile with all times multiplied by a factor."""
        return replace(
            self, settle=self.settle.scaled(factor), boot_ns=round(self.boot_ns * factor)
        )


class OcsDriver(StrEnum):
    """The management interface by which a switch is commanded."""

    SCPI = "scpi"
    TL1 = "tl1"
    RESTCONF = "restconf"


class CrossConnectMode(StrEnum):
    """The treatment of existing cross-connects when a change is commanded.

    The names are SONiC's (`config ocs cross-connect add`).
    """

    SAFE = "safe"
    """A change that needs a port in use, or removes an absent cross-connect, is refused."""
    UPDATE = "update"
    """Cross-connects in the way are removed first; all others stay."""
    OVERWRITE = "overwrite"
    """Exactly the cross-connects of the change remain on the region's ports; other ports stay."""


class Verification(StrEnum):
    """The check of a circuit before traffic relies on it."""

    LIGHT = "light"
    """The switch reports the circuit, and a frame has come through in each direction."""
    READ_BACK = "read-back"
    """The switch reports the circuit."""


@dataclass(frozen=True)
class OcsControl:
    """A controller's access to a switch; by default to the emulated one, at its own address."""

    driver: str = OcsDriver.SCPI
    """An `OcsDriver`, or the name or module:Name of another package's."""
    address: str | None = None
    """Name or address of a switch that isn't the emulated one."""
    port: int | None = None
    """TCP port; None is the well-known port of the driver's protocol."""
    user: str | None = None
    """Account name; None is the factory account."""
    password_env: str | None = None
    """Environment variable that holds the password; None is the factory password."""
    mode: CrossConnectMode = CrossConnectMode.OVERWRITE
    verify: Verification = Verification.LIGHT


@dataclass(frozen=True)
class Ocs:
    """An optical circuit switch of a fabric.

    Attributes:
        name: `ocs0`, `ocs1` and so on.
        ports: Inputs, and as many outputs.
        settle_ns: Time until a moved port has light again.
        link_up_ns: Time from light to a working link.
        link_down: Whether a NIC's link is down without light and for `link_up_ns` after it.
        profile: Behaviour of the device. `ports` above overrides the profile's.
        control: How its controller reaches and verifies it.
    """

    name: str
    ports: int
    settle_ns: int = 0
    link_up_ns: int = 0
    link_down: bool = False
    profile: DeviceProfile = field(default_factory=DeviceProfile)
    control: OcsControl = field(default_factory=OcsControl)
