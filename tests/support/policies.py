"""Every registered policy by its name, and the laws that one breaks."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from moefabric.config import plugins
from moefabric.config.policies import policy_named
from moefabric.planner.laws import Law, Situation, tried
from moefabric.planner.policy import Policy

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {name: policy_named(name) for name in plugins.plugin_names(plugins.POLICIES)}
)


def broken(policy: Policy, situation: Situation) -> Iterator[tuple[Law, str]]:
    """Yield the laws that a policy breaks in a situation, each with a fault."""
    return ((law, fault) for law, faults in tried(policy, situation) for fault in faults)
