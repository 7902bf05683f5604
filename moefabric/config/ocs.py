"""Optical circuit switch of a region, as users write it."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from moefabric.config.data_sections import value_of
from moefabric.config.ocs_profile import OcsProfile
from moefabric.config.references import OcsDriverReference
from moefabric.config.section import DurationNs, Section, Text
from moefabric.core.ocs import CrossConnectMode, DeviceProfile, Ocs, OcsControl, Verification
from moefabric.core.units import Scale


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
    driver: OcsDriverReference = "scpi"
    """Driver with which the controller commands the switch: the name of its protocol, or
    `package.module:Name`."""
    address: Text | None = None
    """Address of a real switch. Default: the emulated one."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """TCP port of the switch. Default: the protocol's."""
    user: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")] | None = None
    """User name. Default: the factory account."""
    password_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = (
        None
    )
    """Environment variable that holds the password. Default: the factory password."""
    mode: Annotated[CrossConnectMode, Field(strict=False)] = CrossConnectMode.OVERWRITE
    """What happens to existing cross-connects that are in the way of a change: `safe` refuses the
    change, `update` removes them, `overwrite` removes all others of the region too."""
    verify: Annotated[Verification, Field(strict=False)] = Verification.LIGHT
    """When traffic may use a circuit: once frames have passed it (`light`), or once the switch
    reports it (`read-back`)."""

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
