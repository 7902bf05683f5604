"""Messages between `up` and the fabric process."""

import os
import pickle
import socket
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.daemon_protocol import UpRequest
from moefabric.emulator.fabric.port_counters import EmulatedPortCounters
from moefabric.emulator.linux.processes import ProcessRole, ProcessSpec
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory

WIRING = FabricWiring(
    Fabric("f", (Region("r0", 0, ("s0", "s1"), None),), 1, 0, 1, 1e9, None),
    ManagementNetwork("198.18.0.0/24"),
)


def test_up_request_survives_pickling() -> None:
    processes = (
        ProcessSpec("agent-s0", "s0", ("agent", "--name", "s0"), {"A": "b"}, ProcessRole.AGENT),
        ProcessSpec("x", "outer", ("x",)),
    )
    request = UpRequest(WIRING, 20.0, 7, "", frozenset({"ocs"}), "mf0", processes)
    assert pickle.loads(pickle.dumps(request)) == request
    agents = request.with_role(ProcessRole.AGENT)
    assert [process.name for process in agents] == ["agent-s0"]


def test_counters_that_are_late_are_named_with_the_fabric_and_a_remedy(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir.control_socket))
        listener.listen()
        late = f"{run_dir.name}: its process {os.getpid()} doesn't answer: wait, or `moefabric down"
        with pytest.raises(FabricError, match=late):
            EmulatedPortCounters(run_dir, reply_s=0.05)
