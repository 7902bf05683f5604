"""Hardware of a region's optical circuit switch, without the process that controls it."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.carrier import Carrier
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric.plan import OcsPlan
from moefabric.emulator.linux import namespaces
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.fd_handoff import HandoffServer, listen_in_namespace
from moefabric.runtime.run_directory import RunDirectory


class OcsHardware:
    """Crossbar of one OCS and the server that hands it to the OCS's process."""

    def __init__(
        self, ocs: OcsPlan, pid: int, run_dir: RunDirectory, dialects: Mapping[str, tuple[str, int]]
    ) -> None:
        """Attach the crossbar to the fibres' ends and start the handoff server.

        Args:
            ocs: the switch.
            pid: a process in the switch's namespace.
            run_dir: directory for the socket of the handoff server.
            dialects: reference and TCP port of each dialect, by name.

        Raises:
            FabricError: if the crossbar can't be attached.
        """
        interfaces, netns = dict(ocs.plugged), namespaces.path_of(pid)
        with ExitStack() as undo:
            crossbar = BpfCrossbar.create(Ports(ocs.spec.ports, ocs.spec.ports))
            undo.callback(crossbar.close)
            crossbar.attach(interfaces, netns)
            self.memory_fd = crossbar.fd
            """Descriptor of the crossbar's memory."""
            listeners = {
                name: undo.enter_context(listen_in_namespace(netns, ocs.address, port))
                for name, (_, port) in dialects.items()
            }
            facts = {
                "ports": ocs.spec.ports,
                **device_spec(ocs, run_dir.name).as_json(),
                "listening": {name: reference for name, (reference, _) in dialects.items()},
            }
            descriptors = [self.memory_fd, *(listener.fileno() for listener in listeners.values())]
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
        profile, f"{fabric}-{ocs.name}", spec.link_up, spec.link_down, ocs.address, ocs.prefix
    )
