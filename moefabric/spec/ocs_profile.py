"""A profile of an OCS as the user writes it: the name of one that ships, or the path of a YAML file."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from moefabric.errors import SpecError
from moefabric.ocs_profile import Loss, Profile, Settle
from moefabric.spec.ocs_manners import DEFAULT_ACCOUNTS, AccountSpec, RestconfSpec, Tl1Spec
from moefabric.spec.part import Part
from moefabric.spec.quantities import DurationNs
from moefabric.spec.words import words
from moefabric.spec.written import written

_SHIPPED: Final = files("moefabric.spec.profiles")


class SettleSpec(Part):
    """How long a port is dark after a command (see `Settle`)."""

    fixed: DurationNs = Settle.fixed_ns
    jitter: DurationNs = 0
    distribution: Literal["uniform", "normal", "exponential"] = "uniform"
    per_connection: DurationNs = 0
    bulk: DurationNs = 0
    lit: Literal["each", "together"] = "each"
    conflict: DurationNs = 0

    def made(self) -> Settle:
        """The value."""
        return Settle(
            fixed_ns=self.fixed,
            jitter_ns=self.jitter,
            jitter=self.distribution,
            serial_ns=self.per_connection,
            bulk_ns=self.bulk,
            bulk=self.lit,
            conflict_ns=self.conflict,
        )


class LossSpec(Part):
    """What light loses on its way (see `Loss`)."""

    typical_db: float = Field(default=Loss.typical_db, ge=0)
    spread_db: float = Field(default=Loss.spread_db, ge=0)
    launch_dbm: float = Loss.launch_dbm
    floor_dbm: float = Loss.floor_dbm
    sensitivity_dbm: float = Loss.sensitivity_dbm
    monitors: Literal["none", "inputs", "both"] = "both"


class ProfileSpec(Part):
    """A profile file (see `Profile`)."""

    vendor: str = Field(default=Profile.vendor, pattern=r'^[^,"]+$')
    model: str = Field(default=Profile.model, pattern=r'^[^,"]+$')
    firmware: str = Field(default=Profile.firmware, pattern=r'^[^,"]+$')
    ports: int | None = Field(default=None, ge=2, le=4096)
    settle: SettleSpec = SettleSpec()
    loss: LossSpec = LossSpec()
    startup: Literal["preserve", "volatile"] = "preserve"
    boot: DurationNs = Profile.boot_ns
    busy: Literal["move", "refuse"] = "move"
    absent: Literal["refuse", "ignore"] = "refuse"
    shut: Literal["accept", "refuse"] = "accept"
    reset: Literal["clear", "keep"] = "clear"
    errors: Literal["device", "client"] = "device"
    users: list[AccountSpec] = Field(default_factory=lambda: list(DEFAULT_ACCOUNTS))
    tl1: Tl1Spec = Tl1Spec()
    restconf: RestconfSpec = RestconfSpec()

    def made(self, name: str) -> Profile:
        """The value."""
        others = {"settle", "loss", "boot", "users", "tl1", "restconf"}
        same = {key: getattr(self, key) for key in ProfileSpec.model_fields.keys() - others}
        return replace(
            Profile(),
            name=name,
            **same,
            settle=self.settle.made(),
            loss=Loss(**self.loss.model_dump()),
            boot_ns=self.boot,
            users=tuple(account.made() for account in self.users),
            tl1=self.tl1.made(),
            restconf=self.restconf.made(),
        )


def shipped() -> list[str]:
    """The names of the profiles that ship."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml")
    )


def profile(chosen: str) -> Profile:
    """The profile of that name; or in the file at that path, if it looks like one. SpecError with all that is wrong with it."""
    if "/" not in chosen and not chosen.endswith((".yaml", ".yml")):
        if chosen not in shipped():
            raise SpecError(
                [("", f"{chosen!r} is none of {', '.join(shipped())}, nor the path of a YAML file")]
            )
        path = Path(str(_SHIPPED / f"{chosen}.yaml"))
    else:
        path = Path(chosen)
    raw = written(path, ())
    try:
        return ProfileSpec.model_validate(raw).made(path.stem)
    except ValidationError as wrong:
        faults = [(".".join(map(str, error["loc"])), words(error)) for error in wrong.errors()]
        raise SpecError(faults) from wrong


def _read(value: Any) -> Any:
    """For pydantic: text is a name or a path. ValueError in one line for what is wrong there."""
    if isinstance(value, Profile):
        return value
    if not isinstance(value, str):
        raise ValueError("a profile's name or the path of one is needed")  # noqa: TRY004 - pydantic's way
    try:
        return profile(value)
    except SpecError as wrong:
        raise ValueError("; ".join(str(wrong).splitlines())) from wrong


OcsProfile = Annotated[Profile, BeforeValidator(_read)]
"""A profile, read from where its name or path says."""
