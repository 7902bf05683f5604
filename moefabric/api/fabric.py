"""Fabrics that are not up yet: loaded from a file or built from values."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from moefabric.api.lab import Lab
from moefabric.api.signals import graceful_shutdown
from moefabric.config import loader
from moefabric.config.fabric import FabricSpec
from moefabric.controller.client import wait_for_controllers
from moefabric.core.errors import ControlError, FabricError
from moefabric.core.machines import MachinePlacement
from moefabric.emulator.fabric import lifecycle
from moefabric.results.progress import PlainProgressReporter
from moefabric.runtime.run_directory import FabricWiring
from moefabric.testbed.cluster.ray_fabric import placer
from moefabric.testbed.cluster.ray_fabric import remove_fabric as remove_fabric_of_cluster
from moefabric.testbed.fabric_processes import up_timeout_s
from moefabric.testbed.placed_fabric import fitted_fabric
from moefabric.testbed.testbed import check_descriptor_limit, data_paths, start_fabric

__all__ = ["EmulatedFabric", "load_fabric", "remove_fabric_of_cluster"]


class EmulatedFabric:
    """Servers, NICs, switches and regions of a fabric that `up` starts on this machine.

    The keyword arguments are the keys of a fabric file::

        fabric = moefabric.EmulatedFabric(
            fabric="lab",
            gpus_per_server=8,
            nic_rate="100Gb/s",
            nics={"optical": 3, "electrical": 1},
            regions=[{"servers": 4, "ocs": {"settle": "25ms"}}],
            scale={"bytes": 1000},
        )

    Attributes:
        spec: The values of the fabric, with all defaults.

    Args:
        **keys: The keys of a fabric file, with numbers, text, lists and mappings.

    Raises:
        SpecError: With all faults of the values, as for a file.
    """

    spec: FabricSpec

    def __init__(self, **keys: Any) -> None:
        self.spec = loader.fabric_of(keys)

    @classmethod
    def load(cls, path: str | Path, settings: Sequence[str] = (), **changes: Any) -> Self:
        """Return the fabric that a file describes.

        Args:
            path: The YAML file.
            settings: Changes as text, such as `nics.optical=2`.
            **changes: Keys with other values than in the file. A mapping changes the keys that it
                names: `nics={"optical": 2}`.

        Raises:
            SpecError: With all faults of the file and the changes.
        """
        return cls.of(loader.load_fabric(Path(path), settings, changes))

    @classmethod
    def of(cls, spec: FabricSpec) -> Self:
        """Return the fabric with this specification."""
        fabric = cls.__new__(cls)
        fabric.spec = spec
        return fabric

    def __repr__(self) -> str:
        return f"EmulatedFabric({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the fabric, of which one can be up at a time."""
        return self.spec.fabric

    def up(
        self, *, cluster: str | None = None, spread: str = "pack", open_cluster: bool = False
    ) -> Lab:
        """Start the fabric, or find it running, and return it. Needs root.

        It stays up until `Lab.down`, the end of the lab's `with`, or `moefabric down`. A running
        one of whose processes has ended is replaced (`Lab.replaced`). After a failure or an
        interruption nothing of it is left.

        Args:
            cluster: Ray cluster whose nodes carry the fabric: HOST:PORT of its head, or `auto`.
                Default: this machine carries it.
            spread: How regions and EPS are spread over nodes: `pack`, `spread`, `strict-pack`,
                `strict-spread`.
            open_cluster: Whether the cluster may do without a token, by which whoever reaches its
                ports runs programs on its nodes.

        Raises:
            FabricError: If the fabric can't be made, or another one has its name.
            ControlError: If a controller isn't ready in time, as without an answer of its OCS.
            UnsupportedError: If the machine or the user lacks something; names the remedy.
        """
        fabric = self.spec.build()
        check_descriptor_limit(data_paths(fabric))
        place: AbstractContextManager[MachinePlacement | None] = nullcontext()
        faults = list[str]()
        if running := self._running_wiring(cluster):
            place = nullcontext(running.placement)
            with suppress(FabricError):  # it ends just now, or `start_fabric` says what is wrong
                faults = lifecycle.faults(self.name)
        elif cluster is not None:
            place = placer(cluster, spread, detached=True, open_cluster=open_cluster)(fabric)
        with graceful_shutdown(), place as placement, ExitStack() as undo:
            if placement:
                fabric = fitted_fabric(fabric, placement, PlainProgressReporter())
            wiring = start_fabric(fabric, self.spec, placement)
            # A fabric with faults is replaced. Another process may have brought one up meanwhile.
            is_same = running is not None and wiring.identity == running.identity
            is_found = is_same or lifecycle.owner(self.name) != os.getpid()
            lab = Lab(self.name, was_up=is_found, replaced=() if is_found else faults)
            if not lab.was_up:
                undo.callback(lab.down)
            try:
                wait_for_controllers(
                    wiring,
                    up_timeout_s(fabric),
                    lambda text: PlainProgressReporter().show_message(f"{self.name}: {text}"),
                )
            except ControlError as error:
                if lab.was_up:
                    raise
                undo.pop_all()
                if logs := lifecycle.discard(self.name):
                    raise ControlError(f"{error}; its logs are in {logs}") from error
                raise
            if not lab.was_up:
                lifecycle.disown(self.name)  # it stays after the end of this process
            undo.pop_all()
        return lab

    def _running_wiring(self, cluster: str | None) -> FabricWiring | None:
        """Return the wiring of the fabric if it is up, where it is asked for."""
        if self.name not in lifecycle.running_fabrics():
            return None
        wiring = Lab(self.name).wiring
        if cluster is not None and wiring.placement is None:
            remedy = f"`moefabric down {self.name}` first"
            raise FabricError(f"{self.name} runs on this machine, not on a cluster: {remedy}")
        return wiring


def load_fabric(path: str | Path, settings: Sequence[str] = (), **changes: Any) -> EmulatedFabric:
    """Return the fabric that a file describes: `EmulatedFabric.load`."""
    return EmulatedFabric.load(path, settings, **changes)
