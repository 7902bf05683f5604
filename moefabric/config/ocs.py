"""Optical circuit switch of a region, as users write it."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from moefabric.config.data_sections import value_of, with_fields_of
from moefabric.config.ocs_profile import OcsProfile
from moefabric.config.references import OcsDriverReference
from moefabric.config.section import DurationNs, Section
from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl
from moefabric.core.units import Scale


@with_fields_of(OcsControl, driver=OcsDriverReference)
class OcsSpec(Section):
    """Optical circuit switch (OCS) of a region, and how its controller reaches it."""

    ports: int | None = Field(default=None, ge=2, le=4096)
    """Inputs, and as many outputs. Default: the profile's, or as many as the region needs."""
    profile: OcsProfile = Field(default_factory=DeviceProfile)
    """Profile of the switch: the name of a shipped one, or the path of a YAML file."""
    settle: DurationNs | None = None
    """Time until a moved port has light. Default: the profile's."""
    link_up: DurationNs = 0
    """Time from light to a usable link."""
    link_down: bool = False
    """Whether the server switch's port is down while its NIC has no light, and until the link is
    up."""
    startup: Literal["preserve", "volatile"] | None = None
    """Whether cross-connects survive a restart of the switch. Default: the profile's."""

    def build(self, name: str, ports_needed: int, scale: Scale) -> Ocs:
        """Return the OCS that this section describes, with times on the wall clock."""
        settle = self.profile.settle.fixed_ns if self.settle is None else self.settle
        profile = replace(self.profile, startup=self.startup or self.profile.startup)
        return Ocs(
            name=name,
            ports=self.ports or profile.ports or ports_needed,
            settle_ns=scale.wall_ns(settle),
            link_up_ns=scale.wall_ns(self.link_up),
            link_down=self.link_down,
            profile=profile.scaled(scale.dilation),
            control=value_of(self, OcsControl),
        )
