"""Profiles of optical circuit switches (OCS): the shipped ones, and YAML files of users."""

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from moefabric.config.input_file import read_yaml
from moefabric.config.plugins import OCS_PROFILES, built_in_names, load_plugin, plugin_names
from moefabric.config.section import DurationNs, Section, quantity_field
from moefabric.config.validation import validate
from moefabric.core import ocs
from moefabric.core.errors import SpecError
from moefabric.core.ocs import DeviceProfile
from moefabric.core.units import duration_text

Completion = Literal["settled", "accepted"]


class SettleSpec(Section):
    """Time that a port is dark after a command."""

    fixed: DurationNs = quantity_field(duration_text(ocs.SettleTime.fixed_ns))
    """Time until the first cross-connect of a command has light."""
    jitter: DurationNs = 0
    """Width of the random part: half-width if uniform, standard deviation if normal, mean if
    exponential."""
    distribution: Literal["uniform", "normal", "exponential"] = "uniform"
    """Distribution of the random part."""
    jitter_per: Literal["connection", "command"] = "connection"
    """Whether each cross-connect has its own random part, or all of a command share one."""
    per_connection: DurationNs = 0
    """Additional time for each further cross-connect of the command."""
    bulk: DurationNs = 0
    """Additional time of a command with more than one cross-connect."""
    lit: Literal["each", "together"] = "each"
    """Whether a command's cross-connects get light one after the other, or all with the last
    one."""
    conflict: DurationNs = 0
    """Additional time of a command that has to remove older cross-connects first."""

    def build(self) -> ocs.SettleTime:
        """Return the settle time that this section describes."""
        return ocs.SettleTime(
            fixed_ns=self.fixed,
            jitter_ns=self.jitter,
            jitter=self.distribution,
            jitter_per=self.jitter_per,
            serial_ns=self.per_connection,
            bulk_ns=self.bulk,
            bulk=self.lit,
            conflict_ns=self.conflict,
        )


class LossSpec(Section):
    """Optical power: loss of the paths, and the ports' power monitors."""

    typical_db: float = Field(default=ocs.OpticalLoss.typical_db, ge=0)
    """Typical loss of a path."""
    spread_db: float = Field(default=ocs.OpticalLoss.spread_db, ge=0)
    """Largest deviation of a path's loss from the typical one."""
    launch_dbm: float = ocs.OpticalLoss.launch_dbm
    """Power that a transceiver sends into an input."""
    floor_dbm: float = ocs.OpticalLoss.floor_dbm
    """Power that the monitor of a port without light reads."""
    sensitivity_dbm: float = ocs.OpticalLoss.sensitivity_dbm
    """Least power with which a receiver works."""
    monitors: Literal["none", "inputs", "both"] = "both"
    """Ports that have a power monitor."""


class AccountSpec(Section):
    """User account of the switch."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$")
    """User name."""
    password: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,128}$")
    """Password."""
    group: Literal["admin", "user", "view"] = "admin"
    """Group, which decides what the user may do."""


def _check_codes(codes: dict[str, str]) -> dict[str, str]:
    for reason, code in codes.items():
        if reason not in ocs.CODES:
            raise ValueError(f"{reason!r} is none of {', '.join(ocs.CODES)}")
        if not (len(code) == 4 and code.isascii() and code.isalpha() and code.isupper()):
            raise ValueError(f"{code!r}: a code has four capital letters")
    return codes


class Tl1Spec(Section):
    """TL1 dialect of the switch."""

    login: bool = True
    """Whether a session has to log in before any command but `ACT-USER`."""
    completes: Completion = "settled"
    """When a command is reported complete: once its light has settled, or at once."""
    slow_s: float = Field(default=ocs.Tl1Dialect.slow_s, ge=0)
    """Seconds after which an unfinished command is acknowledged (GR-831-CORE)."""
    slow_ack: Literal["IP", "PF", "OK", "NA"] = "IP"
    """Code of that acknowledgement."""
    outstanding: int = Field(default=ocs.Tl1Dialect.outstanding, ge=1, le=256)
    """Most commands of a session that may be in progress; further ones are answered `RL`."""
    prompt: str = Field(default="", max_length=16)
    """Text that is sent after each message."""
    messages: bool = True
    """Whether sessions receive autonomous messages unless they inhibit them."""
    timeout_unit_s: int = Field(default=ocs.Tl1Dialect.timeout_unit_s, ge=1)
    """Seconds of one unit of `ED-EQPT::TIMEOUT`."""
    timed_out: Literal["log out", "hang up"] = "log out"
    """What happens to a session that has been idle too long."""
    label_chars: int = Field(default=ocs.Tl1Dialect.label_chars, ge=1, le=128)
    """Longest port label that the switch accepts."""
    codes: Annotated[dict[str, str], AfterValidator(_check_codes)] = Field(default_factory=dict)
    """Error codes that differ from the default ones, by reason."""


class RestconfSpec(Section):
    """RESTCONF dialect of the switch."""

    root: str = Field(default=ocs.RestconfDialect.root, pattern=r"^(/[A-Za-z0-9_.-]+)+$")
    """Path of the API's root."""
    revision: str = Field(default=ocs.RestconfDialect.revision, pattern=r"^\d{4}-\d{2}-\d{2}$")
    """Revision of the YANG module `optical-switch`."""
    completes: Completion = "settled"
    """When a change is answered: once its light has settled, or at once."""
    post_kept_s: float | None = Field(default=None, gt=0)
    """Seconds that a cross-connect made by POST is kept. Default: until it is deleted."""
    idle_s: float = Field(default=ocs.RestconfDialect.idle_s, ge=0)
    """Seconds after which an idle connection is closed."""
    whole_lists: bool = True
    """Whether PATCH and DELETE accept a list without a key as their target."""


class ProfileSpec(Section):
    """A profile file: behaviour of one kind of optical circuit switch."""

    vendor: str = Field(default=DeviceProfile.vendor, pattern=r'^[^,"]+$')
    """Vendor that the switch reports."""
    model: str = Field(default=DeviceProfile.model, pattern=r'^[^,"]+$')
    """Model that the switch reports; `{size}` becomes, for example, 16x16."""
    firmware: str = Field(default=DeviceProfile.firmware, pattern=r'^[^,"]+$')
    """Firmware version that the switch reports."""
    ports: int | None = Field(default=None, ge=2, le=4096)
    """Inputs, and as many outputs. Default: as many as the region needs."""
    settle: SettleSpec = Field(default_factory=SettleSpec)
    """Time that a port is dark after a command."""
    loss: LossSpec = Field(default_factory=LossSpec)
    """Optical power: loss of the paths, and the ports' power monitors."""
    startup: Literal["preserve", "volatile"] = "preserve"
    """Whether cross-connects survive a restart."""
    boot: DurationNs = quantity_field(duration_text(DeviceProfile.boot_ns))
    """Duration of a reboot."""
    busy: Literal["move", "refuse"] = "move"
    """Connecting a connected port: `move` replaces the older cross-connect, `refuse` is an
    error."""
    absent: Literal["refuse", "ignore"] = "refuse"
    """Disconnecting ports that aren't connected with each other."""
    shut: Literal["accept", "refuse"] = "accept"
    """Connecting a disabled port: `accept` leaves it dark until it is enabled, `refuse` is an
    error."""
    reset: Literal["clear", "keep"] = "clear"
    """What the SCPI command `*rst` does to cross-connects."""
    errors: Literal["device", "client"] = "device"
    """Whether all SCPI clients share one error queue, or each has its own."""
    users: list[AccountSpec] = Field(
        default_factory=lambda: [AccountSpec.model_validate(asdict(user)) for user in ocs.ACCOUNTS]
    )
    """User accounts. Default: the vendor's factory accounts."""
    tl1: Tl1Spec = Field(default_factory=Tl1Spec)
    """TL1 dialect."""
    restconf: RestconfSpec = Field(default_factory=RestconfSpec)
    """RESTCONF dialect."""

    def build(self, name: str) -> DeviceProfile:
        """Return the profile that this file describes, under this name."""
        same = self.model_dump(exclude={"settle", "loss", "boot", "users", "tl1", "restconf"})
        return DeviceProfile(
            name=name,
            **same,
            settle=self.settle.build(),
            loss=ocs.OpticalLoss(**self.loss.model_dump()),
            boot_ns=self.boot,
            users=tuple(ocs.UserAccount(**user.model_dump()) for user in self.users),
            tl1=ocs.Tl1Dialect(**self.tl1.model_dump()),
            restconf=ocs.RestconfDialect(**self.restconf.model_dump()),
        )


def shipped_profiles() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(built_in_names(OCS_PROFILES))


def load_profile(name: str) -> DeviceProfile:
    """Return a profile by its name, by the path of a YAML file, or by module and name.

    A registered profile is a `DeviceProfile`, or a package with the file `NAME.yaml`.

    Raises:
        SpecError: if there is no such profile, or with all faults of the file.
    """
    path = Path(name)
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        known = plugin_names(OCS_PROFILES)
        if name not in known and ":" not in name:
            message = f"{name!r} is none of {', '.join(known)}, nor the path of a YAML file"
            raise SpecError([("", message)])
        profile = load_plugin(OCS_PROFILES, name)
        if isinstance(profile, DeviceProfile):
            return profile
        if not isinstance(profile, ModuleType):
            message = f"{name!r} is a {type(profile).__name__}; a DeviceProfile is needed"
            raise SpecError([("", message)])
        path = Path(str(files(profile) / f"{name}.yaml"))
    return validate(ProfileSpec, read_yaml(path)).build(path.stem)


def _profile(value: Any) -> Any:
    """Return the profile with a name or path, for pydantic."""
    if isinstance(value, DeviceProfile):
        return value
    if not isinstance(value, str):
        raise ValueError("a profile's name or path is needed")  # noqa: TRY004 - pydantic needs it
    try:
        return load_profile(value)
    except SpecError as error:
        raise ValueError("; ".join(str(error).splitlines())) from error


OcsProfile = Annotated[
    DeviceProfile, BeforeValidator(_profile), WithJsonSchema({"type": "string", "minLength": 1})
]
"""Profile, given by its name or path."""
