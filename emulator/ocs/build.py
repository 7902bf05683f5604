"""What an optical switch is made of, as data: told over a wire from the fabric to the switch's process, and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from moefabric.ocs_manners import ACCOUNTS, Account, RestconfManners, Tl1Manners
from moefabric.ocs_profile import Loss, Profile, Settle

Links = Mapping[int, int | None]
"""For each port whose light changes: from when its link is up (CLOCK_MONOTONIC, ns), or None where it stays down."""


@dataclass(frozen=True)
class Build:
    """What a switch is made of, besides its mirrors."""

    profile: Profile = field(default_factory=Profile)
    serial: str = "000001"
    link_up_ns: int = 0
    """What transceiver and NIC take after light is back."""
    link_down: bool = False
    """Whether the link is *down* meanwhile (`Outside.links` makes it so). If not, the light itself comes that much later."""
    address: str = ""
    """Where it is controlled, in a /24."""
    memory: Mapping[str, Any] | None = None
    """What the process before this one wrote down (`Outside.keep`)."""


class Outside:
    """What a switch has to tell its surroundings. This one keeps it to itself."""

    def links(self, links: Links) -> None:
        """These ports lose their link now, and get it at an instant or not at all."""

    def keep(self, memory: Mapping[str, Any]) -> None:
        """What the next process has to know, should this one end."""


def facts_of(build: Build) -> dict[str, Any]:
    """What a switch is made of, as JSON has it."""
    return {**vars(build), "profile": asdict(build.profile)}


def built(facts: Mapping[str, Any]) -> Build:
    """The inverse of `facts_of`. KeyError, TypeError or ValueError for facts that say too little."""
    told = dict(facts.get("profile", {}))
    settle = Settle(**told.pop("settle", {"fixed_ns": int(facts.get("settle_ns", Settle.fixed_ns))}))
    loss = Loss(**told.pop("loss", {}))
    users = tuple(Account(**one) for one in told.pop("users", map(vars, ACCOUNTS)))
    tl1, restconf = Tl1Manners(**told.pop("tl1", {})), RestconfManners(**told.pop("restconf", {}))
    return Build(
        Profile(**told, settle=settle, loss=loss, users=users, tl1=tl1, restconf=restconf),
        str(facts["serial"]),
        int(facts.get("link_up_ns", 0)),
        bool(facts.get("link_down", False)),
        str(facts.get("address", "")),
        facts.get("memory"),
    )
