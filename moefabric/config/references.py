"""Types of values that name a plug-in, for specifications."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.config import JsonDict

from moefabric.config.plugins import (
    COLLECTIVE_ORDERS,
    EXPERT_EXCHANGES,
    OCS_DRIVERS,
    PAYLOAD_TRANSFORMS,
    PLACEMENTS,
    POLICIES,
    TRANSPORTS,
    built_in_names,
    load_plugin,
)
from moefabric.core.errors import SpecError
from moefabric.core.ocs_dialect import OcsDriverFactory
from moefabric.core.transport import Transport
from moefabric.planner.policy import Policy
from moefabric.workload.models.payload import PayloadTransform
from moefabric.workload.placement.collective_order import CollectiveOrder
from moefabric.workload.placement.expert_exchange import ExpertExchange
from moefabric.workload.placement.placements import ExpertPlacement


def _known(group: str, protocol: type) -> Callable[[str], str]:
    """Return a validator that refuses a reference to a part that can't be used."""

    def check(reference: str) -> str:
        if reference in built_in_names(group):
            return reference  # the tests load them; importing them here would take time
        try:
            load_plugin(group, reference, protocol)
        except SpecError as error:
            raise ValueError(error.errors[0][1]) from error
        return reference

    return check


def _field(group: str) -> Any:
    """Return a field whose schema has the built-in names as examples."""

    def add_examples(schema: JsonDict) -> None:
        schema["examples"] = list(built_in_names(group))

    return Field(min_length=1, json_schema_extra=add_examples)


OcsDriverReference = Annotated[
    str, _field(OCS_DRIVERS), AfterValidator(_known(OCS_DRIVERS, OcsDriverFactory))
]
"""Name of an OCS driver, or `package.module:Name`."""
PolicyReference = Annotated[str, _field(POLICIES), AfterValidator(_known(POLICIES, Policy))]
"""Name of a policy, or `package.module:Name`."""
TransportReference = Annotated[
    str, _field(TRANSPORTS), AfterValidator(_known(TRANSPORTS, Transport))
]
"""Name of a transport, or `package.module:Name`, and maybe arguments: `name(key=value)`."""
PlacementReference = Annotated[
    str, _field(PLACEMENTS), AfterValidator(_known(PLACEMENTS, ExpertPlacement))
]
"""Name of a placement of experts, or `package.module:Name`, and maybe arguments."""
PayloadReference = Annotated[
    str, _field(PAYLOAD_TRANSFORMS), AfterValidator(_known(PAYLOAD_TRANSFORMS, PayloadTransform))
]
"""Name of a payload transform, or `package.module:Name`, and maybe arguments."""
CollectiveOrderReference = Annotated[
    str, _field(COLLECTIVE_ORDERS), AfterValidator(_known(COLLECTIVE_ORDERS, CollectiveOrder))
]
"""Name of an order of all-to-alls, or `package.module:Name`, and maybe arguments."""
ExpertExchangeReference = Annotated[
    str, _field(EXPERT_EXCHANGES), AfterValidator(_known(EXPERT_EXCHANGES, ExpertExchange))
]
"""Name of an exchange of experts, or `package.module:Name`, and maybe arguments."""
