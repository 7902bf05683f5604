"""RESTCONF as a dialect of the emulated switch, and its options."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt

from moefabric.core.ocs import Spelling, UserAccount
from moefabric.core.ocs_dialect import OcsDialect

_Path = Annotated[str, Spelling("(/[A-Za-z0-9_.-]+)+", "a path such as /api")]
_Date = Annotated[str, Spelling(r"\d{4}-\d{2}-\d{2}", "a date such as 2018-03-22")]


@dataclass(frozen=True)
class RestconfOptions:
    """RESTCONF dialect of the switch."""

    root: _Path = "/api"
    """Path of the API's root."""
    revision: _Date = "2018-03-22"
    """Revision of the YANG module `optical-switch`. Cross-connects are a list of `pairs` before
    2017-08-04 and of `pair` since; the switch understands both names, and sends this revision's
    if the client has named none."""
    completes: Literal["settled", "accepted"] = "settled"
    """When a change is answered: once its light has settled, or at once."""
    post_kept_s: Annotated[float, Gt(0)] | None = None
    """Seconds that a cross-connect made by POST is kept: some users report about 5. Default: until
    it is deleted."""
    idle_s: Annotated[float, Ge(0)] = 60.0
    """Seconds after which an idle connection is closed."""
    whole_lists: bool = True
    """Whether PATCH and DELETE accept a list without a key as their target, as public clients of
    Polatis expect."""


RESTCONF: Final = OcsDialect(
    port=8008,
    front_end="moefabric.emulator.ocs.restconf.front_end:RestconfFrontEnd",
    options=RestconfOptions,
    accounts=(UserAccount("admin", "root"),),
)
