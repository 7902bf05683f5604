"""Optical circuit switches (OCS) as users write them: that of a region, and profiles of devices.

Profiles are the shipped ones, those of other packages, and YAML files of users.
"""

from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, create_model

from moefabric.config import plugins
from moefabric.config.data_sections import AsSection, value_of, with_fields_of
from moefabric.config.input_file import did_you_mean, read_yaml
from moefabric.config.references import OcsDriverReference
from moefabric.config.section import DurationNs, Section
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl, RandomTime
from moefabric.core.ocs_dialect import NoOptions
from moefabric.core.units import Scale


@with_fields_of(DeviceProfile, {"name", "dialects"})
class ProfileSpec(Section):
    """A profile file: behaviour of one kind of optical circuit switch."""


@cache
def profile_section(*dialects: str) -> type[ProfileSpec]:
    """Return the keys of a profile file, with a section of options for each of these dialects.

    Raises:
        SpecError: If a dialect can't be loaded.
    """
    options = {name: plugins.ocs_dialect(name).options for name in dialects}
    sections: dict[str, Any] = {
        name: (Annotated[data_class, AsSection()], Field(default_factory=data_class))
        for name, data_class in options.items()
        if data_class is not NoOptions
    }
    text = ProfileSpec.__doc__
    return create_model("ProfileSpec", __base__=ProfileSpec, __doc__=text, **sections)


def full_profile_section() -> type[ProfileSpec]:
    """Return the keys of a profile file with the options of all registered dialects."""
    return profile_section(*plugins.plugin_names(plugins.OCS_DIALECTS))


def load_profile(name: str) -> DeviceProfile:
    """Return a profile by its name, by the path of a YAML file, or by module and name.

    A registered profile is a `DeviceProfile`, or a package with the file `NAME.yaml`.

    Raises:
        SpecError: If there is no such profile, or with all errors of the file.
    """
    path = Path(name)
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        known = plugins.plugin_names(plugins.OCS_PROFILES)
        if name not in known and ":" not in name:
            message = f"{name!r} is none of {', '.join(known)}, nor the path of a YAML file"
            message += did_you_mean(name, known)
            raise SpecError([("", message)])
        profile = plugins.load_named_by_file(plugins.OCS_PROFILES, name)
        if isinstance(profile, DeviceProfile):
            return profile
        if not isinstance(profile, ModuleType):
            message = f"{name!r} is a {type(profile).__name__}; a DeviceProfile is needed"
            raise SpecError([("", message)])
        path = Path(str(files(profile) / f"{name}.yaml"))
    document = read_yaml(path)
    dialects = [key for key in document if key in plugins.plugin_names(plugins.OCS_DIALECTS)]
    section = validate(profile_section(*dialects), document)
    options = {dialect: asdict(getattr(section, dialect)) for dialect in dialects}
    return value_of(section, DeviceProfile, name=path.stem, dialects=options)


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

LinkUpTime = Annotated[
    Annotated[RandomTime, AsSection(), Tag("random")] | Annotated[DurationNs, Tag("fixed")],
    Discriminator(lambda value: "random" if isinstance(value, dict | RandomTime) else "fixed"),
]
"""Fixed time, or the keys of a random one."""


@with_fields_of(OcsControl, driver=OcsDriverReference)
class OcsSpec(Section):
    """Optical circuit switch (OCS) of a region, and how its controller reaches it."""

    ports: int | None = Field(default=None, ge=2, le=4096)
    """Inputs, and as many outputs. Default: the profile's, or as many as the region needs."""
    first_port: int = Field(default=1, ge=1, le=4096)
    """Input of the first NIC of the region; the others follow. Regions whose switch has the same
    address share it, each with its slice of the inputs."""
    profile: OcsProfile = Field(default_factory=DeviceProfile)
    """Profile of the switch: the name of a shipped one, or the path of a YAML file."""
    settle: DurationNs | None = None
    """Time until a moved port has light. Default: the profile's."""
    link_up: LinkUpTime = 0
    """Time from light to a usable link, or its `fixed`, `jitter` and `distribution`: then each NIC
    draws its own at each change."""
    link_down: bool = False
    """Whether the server switch's port is down while its NIC has no light, and until the link is
    up."""
    startup: Literal["preserve", "volatile"] | None = None
    """Whether cross-connects survive a restart of the switch. Default: the profile's."""

    @property
    def control(self) -> OcsControl:
        """How the controller reaches the switch."""
        return value_of(self, OcsControl)

    def ports_for(self, nics: int) -> int:
        """Return the number of inputs of a switch that has this many NICs of the region."""
        return self.ports or self.profile.ports or self.first_port - 1 + nics

    def build(self, name: str, nics: int, scale: Scale) -> Ocs:
        """Return the OCS that this section describes, with times on the wall clock."""
        settle = self.profile.settle.fixed_ns if self.settle is None else self.settle
        profile = replace(self.profile, startup=self.startup or self.profile.startup)
        link_up = self.link_up if isinstance(self.link_up, RandomTime) else RandomTime(self.link_up)
        return Ocs(
            name=name,
            ports=self.ports_for(nics),
            settle_ns=scale.wall_ns(settle),
            link_up=link_up.scaled(scale.dilation),
            link_down=self.link_down,
            profile=profile.scaled(scale.dilation),
            control=self.control,
            first_port=self.first_port,
        )
