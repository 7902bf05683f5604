"""The electrical switches of one fabric, whatever moves their packets: begun early, plugged in once their wires are there, then connected."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from emulator.bpf_switches import BpfSwitches
from emulator.datapath import DatapathKind
from emulator.ovs import OvsSwitches
from emulator.plan import SwitchPlan
from emulator.processes import Starter
from emulator.waiting import Deadline

Address = tuple[str, int]


class ElectricalSwitches(Protocol):
    """All electrical switches of a fabric. The calling process is in the fabric's namespace; FabricError where something fails."""

    def begin(self, deadline: Deadline) -> None:
        """Start the processes that serve the switches."""
        ...

    def make(self, switches: Sequence[SwitchPlan], deadline: Deadline) -> None:
        """Make the switches, with their ports and without rules or controllers. The ports' queueing is made after this."""
        ...

    def settle(self, deadline: Deadline) -> str | None:
        """What is left to do once ports are shaped; what this machine could not give, if anything."""
        ...

    def connect(self, controllers: Mapping[str, Address], deadline: Deadline) -> None:
        """Have switches, by the name of their bridge, follow these controllers, which listen already."""
        ...


def switches(datapath: DatapathKind, folder: Path, start: Starter) -> ElectricalSwitches:
    """Switches moved by this datapath; what their processes leave on disk is in `folder`, which is made."""
    folder.mkdir(exist_ok=True)
    return OvsSwitches(folder, datapath, start) if datapath.is_ovs else BpfSwitches(folder, start)
