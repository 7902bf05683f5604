"""Policies by reference: built-in ones, those of installed packages, and `package.module:Name`."""

from contextlib import suppress
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from moefabric.config.plugins import POLICIES, built_in_names, load_plugin, plugin_names
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


def _known(reference: str) -> str:
    try:
        policy_named(reference)
    except SpecError as error:
        raise ValueError(error.faults[0][1]) from error
    return reference


def _with_examples(schema: JsonDict) -> None:
    schema["examples"] = list(built_in_names(POLICIES))


PolicyReference = Annotated[
    str, Field(min_length=1, json_schema_extra=_with_examples), AfterValidator(_known)
]
"""Name of a policy, or `package.module:Name`."""
