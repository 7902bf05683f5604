"""Description of an optical switch as data, and the interface to its host."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from moefabric.core.ocs import DeviceProfile, OpticalLoss, RandomTime, SettleTime, UserAccount

LinkTimes = Mapping[int, int | None]
"""By port: when its NIC's link comes up (CLOCK_MONOTONIC, ns), or None if it stays down."""


@dataclass(frozen=True)
class DeviceSpec:
    """Description of an optical switch without its crossbar.

    The fabric sends the description as JSON to the process of the switch.
    """

    profile: DeviceProfile = field(default_factory=DeviceProfile)
    serial: str = "000001"
    link_up: RandomTime = field(default_factory=RandomTime)
    """Time that a transceiver and a NIC need after their light is back."""
    link_down: bool = False
    """Whether the link is down during `link_up`; if not, the light is delayed by that time."""
    address: str = ""
    """Management address."""
    prefix: int = 24
    """Prefix length of the management address."""
    memory: Mapping[str, Any] | None = None
    """State that the previous process saved (`DeviceHost.save`)."""

    def as_json(self) -> dict[str, Any]:
        """Return the description as a JSON object."""
        return {**vars(self), "profile": asdict(self.profile), "link_up": asdict(self.link_up)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read a description; the inverse of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: if the document is incomplete or malformed.
        """
        values = dict(document.get("profile", {}))
        users = values.pop("users", None)
        profile = DeviceProfile(
            settle=SettleTime(**values.pop("settle", {})),
            loss=OpticalLoss(**values.pop("loss", {})),
            users=None if users is None else tuple(UserAccount(**user) for user in users),
            **values,
        )
        link_up = RandomTime(**document.get("link_up", {}))
        names = {field.name for field in fields(cls)} & document.keys()
        given = {name: document[name] for name in names}
        return cls(**{**given, "profile": profile, "link_up": link_up})


class DeviceHost:
    """Host of a switch, which receives its reports. This implementation ignores them."""

    def set_links(self, links: LinkTimes) -> None:
        """Take the links of these ports down now, and bring them up at their times."""

    def save(self, memory: Mapping[str, Any]) -> None:
        """Save the state that the next process needs if the current one ends."""
