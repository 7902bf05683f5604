"""Every registered policy by its name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moefabric.config import plugins
from moefabric.config.policies import policy_named
from moefabric.planner.policy import Policy

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: policy_named(name) for name in plugins.plugin_names(plugins.POLICIES)}
)
