"""Values of an optical circuit switch (OCS): the profile of a kind of switch, and its control.

Users set the fields of a profile's classes in YAML: `fixed_ns` by the key `fixed`, other fields by
their names. Where manuals are silent, the behaviour is a setting with a default. If a default is
more than a guess, its description names the source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from annotated_types import Ge, Interval, Le

DARK_NS: Final = 25_000_000
"""Time for which a port is dark after a command, unless a profile or a fabric file sets it: 25 ms,
the bound of Polatis' product pages for one cross-connect."""
PLACEHOLDER: Final = "{size}"
"""Part of a profile's model that becomes `16x16` and the like."""

Group = Literal["admin", "user", "view"]
"""Rights of a user: everything; all but changing the system and its users; reading only.

The names are those of the YANG module polatis-switch (`group`).
"""


@dataclass(frozen=True)
class Spelling:
    """Rule for a text that users write, as metadata of an annotation.

    Attributes:
        pattern: Regular expression that the whole text must match.
        rule: What is needed, for the error.
    """

    pattern: str
    rule: str


USER_NAME: Final = Spelling(
    "[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", "1 to 32 letters, digits, dots, dashes and underscores"
)
PASSWORD: Final = Spelling(
    "[A-Za-z0-9_.-]{0,128}", "up to 128 letters, digits, dots, dashes and underscores"
)
_LOGIN: Final = Spelling("[A-Za-z0-9_.-]+", "letters, digits, dots, dashes and underscores")
_VARIABLE: Final = Spelling("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
_HOST: Final = Spelling(
    r"[^:\s]+|[^\s:]*:[^\s]*:[^\s]*", "an address or name without port, whose key is `port`,"
)
_IdentityText = Annotated[str, Spelling('[^,"]+', "text without commas and quotes")]


@dataclass(frozen=True)
class UserAccount:
    """User account of the switch."""

    name: Annotated[str, USER_NAME]
    """User name."""
    password: Annotated[str, PASSWORD] = ""
    """Password; may be empty."""
    group: Group = "admin"
    """Group, which decides what the user may do."""


@dataclass(frozen=True)
class RandomTime:
    """Time with a random part."""

    fixed_ns: int = 0
    """Fixed part."""
    jitter_ns: int = 0
    """Width of the random part: half-width if uniform, standard deviation if normal, mean if
    exponential."""
    distribution: Literal["uniform", "normal", "exponential"] = "uniform"
    """Distribution of the random part."""

    @property
    def is_fixed(self) -> bool:
        """True if the time is always `fixed_ns`."""
        return not any(value for name, value in self._times() if name != "fixed_ns")

    @property
    def most_ns(self) -> int:
        """Time that one draw in 8,000 exceeds at most, by the fixed and the random part."""
        widths = {"uniform": 1, "normal": 4, "exponential": 9}
        return self.fixed_ns + widths[self.distribution] * self.jitter_ns

    def scaled(self, factor: float) -> Self:
        """Return all times multiplied by a factor."""
        times: dict[str, Any] = {name: round(value * factor) for name, value in self._times()}
        return replace(self, **times)

    def _times(self) -> list[tuple[str, int]]:
        return [(name, value) for name, value in vars(self).items() if name.endswith("_ns")]


@dataclass(frozen=True)
class SettleTime(RandomTime):
    """Time that a port is dark after a command.

    The k-th cross-connect of a command (from 0) has light after `fixed + jitter + k *
    per_connection`.
    """

    fixed_ns: int = DARK_NS
    """Time until the first cross-connect of a command has light."""
    jitter_per: Literal["connection", "command"] = "connection"
    """Whether each cross-connect has its own random part, or all of a command share one."""
    per_connection_ns: int = 0
    """Additional time for each further cross-connect of the command."""
    bulk_ns: int = 0
    """Additional time of a command with more than one cross-connect."""
    lit: Literal["each", "together"] = "each"
    """Whether a command's cross-connects get light one after the other, or all with the last
    one."""
    conflict_ns: int = 0
    """Additional time of a command that has to remove older cross-connects first."""


@dataclass(frozen=True)
class OpticalLoss:
    """Optical power: loss of the paths, and the ports' power monitors."""

    typical_db: Annotated[float, Ge(0)] = 1.0
    """Typical loss of a path."""
    spread_db: Annotated[float, Ge(0)] = 0.5
    """Largest deviation of a path's loss from the typical one; the serial number is its seed."""
    launch_dbm: float = 0.0
    """Power that a transceiver sends into an input."""
    floor_dbm: float = -60.0
    """Power that the monitor of a port without light reads. Default: Polatis' low-power alarm."""
    sensitivity_dbm: float = -14.0
    """Least power with which a receiver works."""
    monitors: Literal["none", "inputs", "both"] = "both"
    """Ports that have a power monitor."""


@dataclass(frozen=True)
class DeviceProfile:
    """A profile file: behaviour of one kind of optical circuit switch."""

    name: str = "polatis"
    vendor: _IdentityText = "Polatis"
    """Vendor that the switch reports."""
    model: _IdentityText = "N-OST-{size}-LU1-DMHNS"
    """Model that the switch reports; `{size}` becomes, for example, 16x16."""
    firmware: _IdentityText = "6.5.2.18"
    """Firmware version that the switch reports."""
    ports: Annotated[int, Ge(2), Le(4096)] | None = None
    """Inputs, and as many outputs. Default: as many as the region needs."""
    settle: SettleTime = SettleTime()
    """Time that a port is dark after a command."""
    loss: OpticalLoss = OpticalLoss()
    """Optical power: loss of the paths, and the ports' power monitors."""
    startup: Literal["preserve", "volatile"] = "preserve"
    """Whether cross-connects survive a restart (Polatis YANG: MODE_PRESERVE, MODE_VOLATILE)."""
    boot_ns: int = 2_000_000_000
    """Duration of a reboot; preserved cross-connects stay lit meanwhile."""
    busy: Literal["move", "refuse"] = "move"
    """Connecting a connected port: `move` replaces the older cross-connect, `refuse` is an
    error."""
    absent: Literal["refuse", "ignore"] = "refuse"
    """Disconnecting ports that aren't connected with each other."""
    shut: Literal["accept", "refuse"] = "accept"
    """Connecting a disabled port: `accept` leaves it dark until it is enabled, `refuse` is an
    error. A failed port is always refused."""
    reset: Literal["clear", "keep"] = "clear"
    """What the SCPI command `*rst` does to cross-connects."""
    errors: Literal["device", "client"] = "device"
    """Whether all SCPI clients share one error queue, or each has its own."""
    users: tuple[UserAccount, ...] | None = None
    """User accounts at the start. Default: the factory accounts of the switch's dialects."""
    dialects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Options that differ from the defaults, by dialect: fields of `OcsDialect.options`."""

    def scaled(self, factor: float) -> Self:
        """Return the profile with all times multiplied by a factor."""
        return replace(
            self, settle=self.settle.scaled(factor), boot_ns=round(self.boot_ns * factor)
        )


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

    driver: str = "scpi"
    """Driver with which the controller commands the switch: the name of its protocol, or
    `package.module:Name`."""
    address: Annotated[str, _HOST] | None = None
    """Address of a real switch. Default: the emulated one."""
    port: Annotated[int, Interval(ge=1, le=65535)] | None = None
    """TCP port of the switch. Default: the protocol's."""
    user: Annotated[str, _LOGIN] | None = None
    """User name. Default: the factory account."""
    password_env: Annotated[str, _VARIABLE] | None = None
    """Environment variable that holds the password. Default: the factory password."""
    mode: CrossConnectMode = CrossConnectMode.OVERWRITE
    """What happens to existing cross-connects that are in the way of a change: `safe` refuses the
    change, `update` removes them, `overwrite` removes all others of the region too."""
    verify: Verification = Verification.LIGHT
    """When traffic may use a circuit: once frames have passed it (`light`), or once the switch
    reports it (`read-back`)."""
    light_check_ns: int = 500_000_000
    """Model time between two checks of the circuits that carry traffic, by frames (`verify: light`)
    or by the switch's report (`read-back`); 0 for none."""
    relight: bool = True
    """Whether circuits that have lost their light are lit again. Otherwise the next request for
    circuits lights them."""

    def may_be_device_of(self, other: "OcsControl") -> bool:
        """Return whether both may reach one real switch: ports that aren't given may be equal."""
        ports = {self.port, other.port} - {None}
        return self.address is not None and self.address == other.address and len(ports) < 2


@dataclass(frozen=True)
class Ocs:
    """An optical circuit switch of a fabric.

    Attributes:
        name: `ocs0`, `ocs1` and so on.
        ports: Inputs, and as many outputs.
        first_port: Input of the region's first NIC; the others follow. Several regions may each
            have a slice of one device.
        settle_ns: Time until a moved port has light again.
        link_up: Time from light to a working link, drawn for each NIC and change.
        link_down: Whether a NIC's link is down without light and for `link_up` after it.
        profile: Behaviour of the device. `ports` above overrides the profile's.
        control: How its controller reaches and verifies it.
    """

    name: str
    ports: int
    settle_ns: int = 0
    link_up: RandomTime = RandomTime()
    link_down: bool = False
    profile: DeviceProfile = field(default_factory=DeviceProfile)
    control: OcsControl = field(default_factory=OcsControl)
    first_port: int = 1
