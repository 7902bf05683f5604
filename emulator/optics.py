"""A region's optical switch as hardware: a crossbar on the ends of the fibres, and the plant that hands it to its process."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from emulator import namespaces
from emulator.carrier import Carrier
from emulator.light import Ports
from emulator.loop import Timers
from emulator.mirrors import Mirrors
from emulator.ocs.build import Build, facts_of
from emulator.plan import OcsPlan
from emulator.plant import Links, Plant, listening_within
from moefabric.management import OCS_PORTS, RunDir


class Optics:
    """The crossbar of one OCS, plugged in, and its plant. It holds both open until `close`."""

    def __init__(self, ocs: OcsPlan, crossbar: str, pid: int, run_dir: RunDir) -> None:
        """Plug the fibres in that end in the namespace of process `pid`, into a crossbar of that kind, and offer the switch.

        FabricError where that fails.
        """
        self.name = ocs.name
        self._ocs, self._netns = ocs, namespaces.of(pid)
        with ExitStack() as made:
            mirrors = Mirrors(crossbar, Ports(ocs.ports, ocs.ports), dict(ocs.plugged), self._netns)
            made.callback(mirrors.close)
            listeners = {
                language: made.enter_context(listening_within(self._netns, ocs.address, port))
                for language, port in OCS_PORTS.items()
            }
            facts = mirrors.facts | facts_of(built(ocs, run_dir.name)) | {"listening": list(listeners)}
            descriptors = [mirrors.fd, *(listener.fileno() for listener in listeners.values())]
            self._carrier: Carrier | None = None
            links = self._links if ocs.link_down else None
            self.plant = Plant(run_dir.plant(ocs.region), facts, descriptors, links)
            made.callback(self._close)
            self._made = made.pop_all()

    def _links(self, timers: Timers) -> Callable[[Links], None]:
        self._carrier = Carrier(dict(self._ocs.plugged), self._netns, timers)
        return self._carrier.change

    def _close(self) -> None:
        self.plant.close()
        if self._carrier is not None:
            self._carrier.close()

    def close(self) -> None:
        """Take the plant away, upon which the OCS's process ends; the light ends with the namespace."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def built(ocs: OcsPlan, fabric: str) -> Build:
    """What the switch is made of; its settle time is the plan's."""
    settle = replace(ocs.profile.settle, fixed_ns=ocs.settle_ns)
    return Build(
        replace(ocs.profile, settle=settle),
        f"{fabric}-{ocs.name}",
        ocs.link_up_ns,
        ocs.link_down,
        ocs.address,
    )
