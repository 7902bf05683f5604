"""What `up` and the fabric process say to each other."""

import json
from dataclasses import dataclass
from typing import Final

from emulator.processes import Process, Role

KEEP: Final = "keep\n"
"""Said by `up` when it has heard that all is ready; a fabric process whose `up` falls silent before that goes away."""
NODES: Final = "nodes.json"
"""File of the run directory: a process in the namespace of each node."""


@dataclass(frozen=True)
class Order:
    """What `up` asks the fabric process for.

    `outer` is the outer interface, `bridge_address` the fabric's own on the management network, `external` names the processes that
    others start.
    """

    outer: str
    bridge_address: str
    processes: tuple[Process, ...]
    external: frozenset[str]
    timeout_s: float

    def to_json(self) -> str:
        """One line."""
        told = {"outer": self.outer, "bridge_address": self.bridge_address, "external": sorted(self.external), "timeout_s": self.timeout_s}
        return json.dumps(told | {"processes": [process.to_dict() for process in self.processes]})

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """The inverse of `to_json`."""
        told = json.loads(text)
        processes = tuple(Process.from_dict(process) for process in told["processes"])
        return cls(told["outer"], told["bridge_address"], processes, frozenset(told["external"]), told["timeout_s"])

    def having(self, role: Role) -> tuple[Process, ...]:
        """The processes of a role, whoever starts them."""
        return tuple(process for process in self.processes if process.role is role)
