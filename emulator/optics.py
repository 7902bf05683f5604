"""A region's optical switch as hardware: a crossbar on the ends of the fibres, and the plant that hands it to its process."""

from contextlib import ExitStack
from typing import Self

from emulator import namespaces
from emulator.light import Ports
from emulator.mirrors import Mirrors
from emulator.plan import OcsPlan
from emulator.plant import Plant, listening_within
from moefabric.management import SCPI_PORT, RunDir


class Optics:
    """The crossbar of one OCS, plugged in, and its plant. It holds both open until `close`."""

    def __init__(self, ocs: OcsPlan, crossbar: str, pid: int, run_dir: RunDir) -> None:
        """Plug the fibres in that end in the namespace of process `pid`, into a crossbar of that kind, and offer the switch.

        FabricError where that fails.
        """
        self.name = ocs.name
        with ExitStack() as made:
            mirrors = Mirrors(crossbar, Ports(ocs.ports, ocs.ports), dict(ocs.plugged), namespaces.of(pid))
            made.callback(mirrors.close)
            listener = made.enter_context(listening_within(namespaces.of(pid), ocs.address, SCPI_PORT))
            facts = mirrors.facts | {
                "settle_ns": ocs.settle_ns,
                "link_up_ns": ocs.link_up_ns,
                "serial": f"{run_dir.name}-{ocs.name}",
            }
            self.plant = Plant(run_dir.plant(ocs.region), facts, [mirrors.fd, listener.fileno()])
            made.callback(self.plant.close)
            self._made = made.pop_all()

    def close(self) -> None:
        """Take the plant away, upon which the OCS's process ends; the light ends with the namespace."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
