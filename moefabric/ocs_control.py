"""How a region's controller reaches and treats its optical switch: which language, where, as whom, and how much it trusts it."""

from dataclasses import dataclass
from enum import StrEnum


class Driver(StrEnum):
    """The language in which the switch is commanded."""

    SCPI = "scpi"
    TL1 = "tl1"
    RESTCONF = "restconf"


class Mode(StrEnum):
    """What becomes of cross-connects in the way of a change, or besides it (the names are SONiC's, `config ocs cross-connect add`)."""

    SAFE = "safe"
    """A change that needs a port in use is refused; so is one that takes out what isn't there."""
    UPDATE = "update"
    """What is in the way is taken out first; what else is joined stays."""
    OVERWRITE = "overwrite"
    """What is joined to a port of the region is what the change says, and nothing else; other ports are left alone."""


class Verification(StrEnum):
    """What has to be seen before traffic relies on a circuit."""

    LIGHT = "light"
    """The switch shows it, and a frame has come through it each way."""
    READ_BACK = "read-back"
    """The switch shows it."""


@dataclass(frozen=True)
class OcsControl:
    """How a switch is controlled. Where nothing is said, it is the emulated one, at its own address."""

    driver: Driver = Driver.SCPI
    address: str | None = None
    """Of a switch that isn't the emulated one: a name or a number."""
    port: int | None = None
    """None: the one that its language is known by."""
    user: str | None = None
    """None: what it leaves the factory with."""
    password_env: str | None = None
    """The environment variable that holds the password; it never stands in a file. None: what it leaves the factory with."""
    mode: Mode = Mode.OVERWRITE
    verify: Verification = Verification.LIGHT
