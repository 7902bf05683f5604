"""What goes wrong with flows, whoever is told to do something with them."""

from moefabric.errors import FabricError


class FlowError(FabricError):
    """A flow, a group or an action that makes no sense or finds no room; `str()` names it."""
