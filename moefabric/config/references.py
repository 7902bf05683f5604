"""Types of values that name a plug-in, for specifications."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from moefabric.config import plugins
from moefabric.config.plugins import built_in_names, load_named_by_file
from moefabric.config.section import Section, Text
from moefabric.core.errors import SpecError
from moefabric.core.ocs_dialect import OcsDriverFactory
from moefabric.core.transport import Transport
from moefabric.planner.policy import Policy
from moefabric.workload.models.payload import PayloadTransform
from moefabric.workload.placement.collective_order import CollectiveOrder
from moefabric.workload.placement.expert_exchange import ExpertExchange
from moefabric.workload.placement.placements import ExpertPlacement


@dataclass(frozen=True)
class _Reference:
    """Metadata of a text: it names a part that can be used.

    Attributes:
        group: Group of the part.
        protocol: The Protocol whose members the part must have.
    """

    group: str
    protocol: type

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        names = built_in_names(self.group)
        return {**handler(schema), **({"examples": list(names)} if names else {})}

    def _check(self, reference: str) -> str:
        # The tests load built-in parts; importing them here would take time.
        if reference not in built_in_names(self.group):
            try:
                load_named_by_file(self.group, reference, self.protocol)
            except SpecError as error:
                raise ValueError(error.errors[0][1]) from error
        return reference


OcsDriverReference = Annotated[Text, _Reference(plugins.OCS_DRIVERS, OcsDriverFactory)]
"""Name of an OCS driver, or `package.module:Name`."""
PolicyReference = Annotated[Text, _Reference(plugins.POLICIES, Policy)]
"""Name of a policy, or `package.module:Name`."""
TransportReference = Annotated[Text, _Reference(plugins.TRANSPORTS, Transport)]
"""Name of a transport, or `package.module:Name`, and maybe arguments: `name(key=value)`."""
PlacementReference = Annotated[Text, _Reference(plugins.PLACEMENTS, ExpertPlacement)]
"""Name of a placement of experts, or `package.module:Name`, and maybe arguments."""
PayloadReference = Annotated[Text, _Reference(plugins.PAYLOAD_TRANSFORMS, PayloadTransform)]
"""Name of a payload transform, or `package.module:Name`, and maybe arguments."""
CollectiveOrderReference = Annotated[Text, _Reference(plugins.COLLECTIVE_ORDERS, CollectiveOrder)]
"""Name of an order of all-to-alls, or `package.module:Name`, and maybe arguments."""
ExpertExchangeReference = Annotated[Text, _Reference(plugins.EXPERT_EXCHANGES, ExpertExchange)]
"""Name of an exchange of experts, or `package.module:Name`, and maybe arguments."""


def named_parts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the group and the reference of each plug-in that a section names."""
    match value:
        case Section():
            for name, field in type(value).model_fields.items():
                entry, marks = getattr(value, name), [*field.metadata]
                marks += [m for part in get_args(field.annotation) for m in get_args(part)[1:]]
                groups = [mark.group for mark in marks if isinstance(mark, _Reference)]
                if groups and isinstance(entry, str):
                    yield groups[0], entry
                else:
                    yield from named_parts(entry)
        case Mapping():
            yield from named_parts([*value.values()])
        case Sequence() if not isinstance(value, str):
            for entry in value:
                yield from named_parts(entry)
