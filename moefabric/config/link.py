"""Links of the EPS with a behaviour of their own, as users write it."""

from typing import Annotated

from pydantic import Field

from moefabric.config.data_sections import value_of, with_fields_of
from moefabric.config.section import Section
from moefabric.core.link import EpsLink, LinkBehaviour, LinkPlace


@with_fields_of(LinkBehaviour, {"rate_bps", "paths", "path_choice"})
class EpsLinkSpec(Section):
    """Behaviour of links of the EPS, which a relay in user space gives them.

    A fabric has one relay, which passes some 50,000 packets a second on. A run whose relay is late
    is degraded.
    """

    place: Annotated[LinkPlace, Field(strict=False)] = LinkPlace.NICS
    """`nics`: links between electrical NICs and leaves; `uplinks`: between leaves and spines."""

    def build(self) -> EpsLink:
        """Return the behaviour that this section describes."""
        return EpsLink(value_of(self, LinkBehaviour), self.place)
