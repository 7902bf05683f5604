"""Profiles: what sets one optical circuit switch apart from another, as data.

Times that a device takes, light that it loses, and what it does where manuals are silent: each of the latter is a setting with a default.
"""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from moefabric.ocs_manners import ACCOUNTS, Account, RestconfManners, Tl1Manners

PLACEHOLDER = "{size}"


@dataclass(frozen=True)
class Settle:
    """How long a port is dark after a command, in ns.

    A cross-connect that is the k-th of its command (from 0) has light after `fixed + jitter + k * serial`; a command for more than one takes
    `bulk` longer; one that has to part older cross-connects first, since their ports are wanted, takes `conflict` longer.
    """

    fixed_ns: int = 25_000_000
    jitter_ns: int = 0
    """Half-width of `uniform`, standard deviation of `normal`, mean of `exponential`."""
    jitter: Literal["uniform", "normal", "exponential"] = "uniform"
    serial_ns: int = 0
    bulk_ns: int = 0
    bulk: Literal["each", "together"] = "each"
    """Whether each cross-connect of a command has light when it settles, or all of them with the last."""
    conflict_ns: int = 0

    def scaled(self, factor: float) -> Self:
        """All times `factor` as long."""
        times = {name: round(value * factor) for name, value in vars(self).items() if name.endswith("_ns")}
        return replace(self, **times)


@dataclass(frozen=True)
class Loss:
    """What light loses between an input and an output, and what a port's power monitor reads, in dB and dBm."""

    typical_db: float = 1.0
    spread_db: float = 0.5
    """The loss of a path lies within so much of the typical one, always the same for the same seed."""
    launch_dbm: float = 0.0
    """What a transceiver sends into an input."""
    floor_dbm: float = -60.0
    """What a port without light reads: the default of Polatis' low-power alarm."""
    sensitivity_dbm: float = -14.0
    """A receiver that gets less hears nothing."""
    monitors: Literal["none", "inputs", "both"] = "both"
    """Which ports have a photodetector."""


@dataclass(frozen=True)
class Profile:
    """A kind of optical circuit switch. `model` has `{size}` where drivers look for `16x16`."""

    name: str = "polatis"
    vendor: str = "Polatis"
    model: str = "N-OST-{size}-LU1-DMHNS"
    firmware: str = "6.5.2.18"
    ports: int | None = None
    """Inputs, and as many outputs; None: as many as its fabric needs."""
    settle: Settle = Settle()
    loss: Loss = Loss()
    startup: Literal["preserve", "volatile"] = "preserve"
    """Whether cross-connects outlive a restart (Polatis YANG: MODE_PRESERVE) or are cleared by it (MODE_VOLATILE)."""
    boot_ns: int = 2_000_000_000
    """How long a reboot takes. Light stays on meanwhile if cross-connects are preserved."""
    busy: Literal["move", "refuse"] = "move"
    """What `add` does with a port that is joined already: the older cross-connect gives way, or the command is refused."""
    absent: Literal["refuse", "ignore"] = "refuse"
    """What parting two ports does that are not joined."""
    shut: Literal["accept", "refuse"] = "accept"
    """What joining a disabled port does: joined, and dark until it is enabled; or refused. A failed port is always refused."""

    reset: Literal["clear", "keep"] = "clear"
    """What SCPI's `*rst` does to cross-connects."""
    errors: Literal["device", "client"] = "device"
    """Whose SCPI's error queue is: one for all clients, or one for each."""

    users: tuple[Account, ...] = ACCOUNTS
    """Who may log in, besides those who are let in while it runs."""
    tl1: Tl1Manners = field(default_factory=Tl1Manners)
    restconf: RestconfManners = field(default_factory=RestconfManners)

    def scaled(self, factor: float) -> Self:
        """All times `factor` as long."""
        return replace(self, settle=self.settle.scaled(factor), boot_ns=round(self.boot_ns * factor))
