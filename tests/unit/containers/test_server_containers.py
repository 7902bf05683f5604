"""Containers that end while they join a fabric."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moefabric.config.run_directory import RunDirectory
from moefabric.core.server_container import ExistingContainer
from moefabric.emulator.containers import container
from moefabric.emulator.containers.container import FabricIdentity, RunningContainer
from moefabric.emulator.fabric.server_containers import ServerContainers
from tests.support.fabrics import fabric


def test_container_that_ends_before_its_namespace_is_entered_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        running = RunningContainer("0123", "box", "image", process.pid, is_new=False)
        monkeypatch.setattr(container, "find_container", lambda *_: running)
        monkeypatch.setattr(container, "end_description", lambda *_: "s0: box has ended")
        wiring: Any = SimpleNamespace(
            fabric=fabric(1, 1), management=SimpleNamespace(subnet="198.18.0.0/24")
        )
        containers = ServerContainers(RunDirectory(tmp_path), wiring)
        identity = FabricIdentity("lab", str(tmp_path), {})
        fault = containers._try_join(identity, [], "s0", ExistingContainer("box"))
        assert fault == "s0: box has ended"
        containers.close()
