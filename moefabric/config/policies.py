"""Policies by reference: built-in ones, those of installed packages, and `package.module:Name`."""

from contextlib import suppress

from moefabric.config.plugins import POLICIES, load_plugin, plugin_names
from moefabric.core.errors import SpecError
from moefabric.planner.policy import Policy


def policy_named(reference: str) -> Policy:
    """Return a policy by its name, or by its module and name.

    Args:
        reference: A name such as "mixnet" or "joint", or `package.module:Name`.

    Returns:
        The policy.

    Raises:
        SpecError: If there is no such policy; the message lists all names.
    """
    policy: Policy = load_plugin(POLICIES, reference, Policy)
    return policy


def patch_panel_policies() -> list[str]:
    """Return the names of the registered policies that suit a patch panel."""
    suited = []
    for name in plugin_names(POLICIES):
        with suppress(SpecError):  # a part that can't be imported suits nothing
            if policy_named(name).suits_patch_panel:
                suited.append(name)
    return suited
