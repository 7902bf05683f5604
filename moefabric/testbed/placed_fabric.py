"""A fabric of a run on several machines: its MTU, the servers elsewhere, the machines' CPUs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from moefabric.core.errors import FabricError
from moefabric.core.machines import MachinePlacement
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric.other_machines import ask_parts
from moefabric.emulator.fabric.tunnels import TUNNEL_HEADERS, carrier_mtu
from moefabric.results.progress import ProgressReporter
from moefabric.runtime.run_directory import RunDirectory

Placer = Callable[[Fabric], AbstractContextManager[MachinePlacement]]
"""Function that returns the machines of a fabric; their services run within the context."""


def fitted_fabric(
    fabric: Fabric, placement: MachinePlacement, reporter: ProgressReporter
) -> Fabric:
    """Return a fabric whose packets fit the network between the machines without fragmentation.

    Args:
        reporter: Shows a smaller MTU.

    Raises:
        FabricError: If no route leads to a machine.
    """
    carriers = [carrier_mtu(machine.address) for machine in placement.others]
    for interface, mtu in sorted(carriers, key=lambda carrier: carrier[1])[:1]:
        if (most := mtu - TUNNEL_HEADERS) < fabric.mtu:
            reporter.show_message(
                f"warning: packets of the fabric have {most} bytes instead of {fabric.mtu}, "
                f"because {interface} carries {mtu}"
            )
            return replace(fabric, mtu=most)
    return fabric


def placed_elsewhere(fabric: Fabric, placement: MachinePlacement | None) -> dict[str, str]:
    """Return the machine of each server that isn't on the head."""
    if placement is None:
        return {}
    machines = placement.components(fabric)
    head = placement.head.name
    return {server: machines[server] for server in fabric.servers if machines[server] != head}


def other_cpu_ticks(run_dir: RunDirectory | None) -> dict[str, Sequence[int]]:
    """Return the CPU times of those of a fabric's other machines that answer.

    Args:
        run_dir: The head's run directory of the fabric; None for real servers.
    """
    if run_dir is None or not run_dir.machines_file.exists():
        return {}
    try:
        parts = ask_parts(run_dir, {"do": "alive"}).parts
    except FabricError:
        return {}
    return {name: reply["ticks"] for name, reply in parts.items() if "ticks" in reply}
