"""A region's optical switch as hardware: a crossbar on the ends of the fibres, and the plant that hands it to its process."""

from contextlib import ExitStack
from typing import Self

from emulator import namespaces
from emulator.crossbar import BpfCrossbar
from emulator.light import Ports
from emulator.plan import OcsPlan
from emulator.plant import Plant, listening_within
from moefabric.management import SCPI_PORT, RunDir


class Optics:
    """The crossbar of one OCS, plugged in, and its plant. It holds both open until `close`."""

    def __init__(self, ocs: OcsPlan, pid: int, run_dir: RunDir) -> None:
        """Plug the fibres in that end in the namespace of process `pid`, and offer the switch. FabricError where that fails."""
        self.name = ocs.name
        with ExitStack() as made:
            self.crossbar = BpfCrossbar.create(Ports(ocs.ports, ocs.ports))
            made.callback(self.crossbar.close)
            self.crossbar.attach(dict(ocs.plugged), namespaces.of(pid))
            listener = made.enter_context(listening_within(namespaces.of(pid), ocs.address, SCPI_PORT))
            facts = {
                "ports": ocs.ports,
                "settle_ns": ocs.settle_ns,
                "link_up_ns": ocs.link_up_ns,
                "serial": f"{run_dir.name}-{ocs.name}",
            }
            self.plant = Plant(run_dir.plant(ocs.region), facts, [self.crossbar.fd, listener.fileno()])
            made.callback(self.plant.close)
            self._made = made.pop_all()

    def close(self) -> None:
        """Take the plant away, upon which the OCS's process ends; the light ends with the namespace."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
