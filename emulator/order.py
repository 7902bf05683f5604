"""What `up` and the fabric process say to each other."""

import base64
import pickle
from dataclasses import dataclass
from typing import Final

from emulator.processes import Process, Role
from moefabric.management import Wiring

KEEP: Final = "keep\n"
"""Said by `up` when it has heard that all is ready; a fabric process whose `up` falls silent before that goes away."""
NODES: Final = "nodes.json"
"""File of the run directory: a process in the namespace of each node."""


@dataclass(frozen=True)
class Order:
    """What `up` asks the fabric process for: `outer` is the outer interface, `external` names processes that others start."""

    wiring: Wiring
    outer: str
    processes: tuple[Process, ...]
    external: frozenset[str]
    timeout_s: float

    def to_line(self) -> str:
        """One line. Pickled, since reading JSON would keep the controllers waiting for the library that does it."""
        return base64.b64encode(pickle.dumps(self)).decode() + "\n"

    @classmethod
    def from_line(cls, text: str) -> "Order":
        """The inverse of `to_line`, of a line that this very program wrote."""
        order = pickle.loads(base64.b64decode(text))  # noqa: S301 - from `up`, which started the reader
        assert isinstance(order, cls)
        return order

    def having(self, role: Role) -> tuple[Process, ...]:
        """The processes of a role, whoever starts them."""
        return tuple(process for process in self.processes if process.role is role)
