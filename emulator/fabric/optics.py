"""Hardware of a region's optical circuit switch, without the process that controls it."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.crossbar.selection import BPF, installed_crossbar
from moefabric.emulator.fabric.plan import OcsPlan
from moefabric.emulator.linux import namespaces
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fd_handoff import HandoffServer, listen_in_namespace
from moefabric.runtime.run_directory import RunDirectory


class OcsHardware:
    """Crossbar of one OCS and the server that hands it to the OCS's process."""

    def __init__(
        self,
        ocs: OcsPlan,
        crossbar: str,
        pid: int,
        run_dir: RunDirectory,
        dialects: Mapping[str, tuple[str, int]],
    ) -> None:
        """Attach the crossbar to the fibres' ends and start the handoff server.

        Args:
            ocs: the switch.
            crossbar: kind of crossbar (`moefabric.emulator.crossbar.selection`).
            pid: a process in the switch's namespace.
            run_dir: directory for the socket of the handoff server.
            dialects: reference and TCP port of each dialect, by name.

        Raises:
            FabricError: if the crossbar can't be attached.
        """
        interfaces, netns = dict(ocs.plugged), namespaces.path_of(pid)
        with ExitStack() as undo:
            crossbar_ports = Ports(ocs.spec.ports, ocs.spec.ports)
            crossbar_facts, fd = undo.enter_context(
                installed_crossbar(crossbar, crossbar_ports, interfaces, netns)
            )
            self.memory_fd = fd if crossbar == BPF else None
            """Descriptor of the crossbar's memory; None if the crossbar counts no frames."""
            listeners = {
                name: undo.enter_context(listen_in_namespace(netns, ocs.address, port))
                for name, (_, port) in dialects.items()
            }
            facts = {
                **crossbar_facts,
                **device_spec(ocs, run_dir.name).as_json(),
                "listening": {name: reference for name, (reference, _) in dialects.items()},
            }
            descriptors = [fd, *(listener.fileno() for listener in listeners.values())]
            carrier = partial(Carrier, interfaces, netns) if ocs.spec.link_down else None
            socket_path = run_dir.ocs_socket(ocs.region)
            self.handoff = HandoffServer(socket_path, facts, descriptors, carrier)
            undo.callback(self.handoff.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Close the handoff server, which ends the OCS's process; circuits end with the node."""
        self._undo.close()


def device_spec(ocs: OcsPlan, fabric: str) -> DeviceSpec:
    """Return the specification of a switch's device, with the settling time of the plan."""
    spec = ocs.spec
    settle = replace(spec.profile.settle, fixed_ns=spec.settle_ns)
    profile = replace(spec.profile, settle=settle)
    return DeviceSpec(
        profile, f"{fabric}-{ocs.name}", spec.link_up_ns, spec.link_down, ocs.address, ocs.prefix
    )
