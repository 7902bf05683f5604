"""Containers that end while they join a fabric."""

import os
import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from requests.exceptions import ReadTimeout

from moefabric.core.errors import FabricError
from moefabric.core.server_container import ExistingContainer, NewContainer
from moefabric.emulator.containers import container
from moefabric.emulator.containers.container import RunningContainer
from moefabric.emulator.fabric.server_containers import JoinedServer, ServerContainers
from moefabric.emulator.linux.marked_processes import RUN_DIR_VARIABLE
from moefabric.runtime.run_directory import (
    FABRIC_VARIABLE,
    IDENTITY_VARIABLE,
    RunDirectory,
    ServerInterfaces,
)
from tests.support.fabrics import fabric

MARKS = {FABRIC_VARIABLE: "lab", RUN_DIR_VARIABLE: "/run"}


class EngineContainer:
    """Container whose end the engine learns while a caller waits for it."""

    id, name = "0123", "box"

    def __init__(self, pid: int) -> None:
        self.attrs: dict[str, Any] = {"State": {"Status": "running", "Pid": pid}}
        self._next = self.attrs

    def wait(self, timeout: float) -> None:
        assert timeout > 0
        self._next = {"State": {"Status": "exited", "Pid": 0, "ExitCode": 3}}

    def reload(self) -> None:
        self.attrs = self._next

    def logs(self, tail: int) -> bytes:
        return b"no licence\n"[-100 * tail :]


def test_end_that_the_engine_does_not_know_yet_is_described() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        found = EngineContainer(process.pid)
        found.attrs["HostConfig"] = {"NetworkMode": "none"}
        engine: Any = SimpleNamespace(containers=SimpleNamespace(get=lambda _: found))
        with pytest.raises(FabricError, match="box has ended with status 3, saying: no licence"):
            container.find_container(engine, "s0", ExistingContainer("box"))


def test_container_that_ends_after_its_namespace_is_entered_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    running = RunningContainer("0123", "box", "image", process.pid, is_new=False)
    monkeypatch.setattr(container, "end_description", lambda *_: "s0: box has ended")
    wiring: Any = SimpleNamespace(fabric=fabric(1, 1))
    containers = ServerContainers(RunDirectory(tmp_path), wiring)
    containers.joined["s0"] = JoinedServer(running, ServerInterfaces())
    with pytest.raises(FabricError, match="box has ended"):
        containers._check_shared()


def test_container_that_ends_before_its_namespace_is_entered_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        running = RunningContainer("0123", "box", "image", process.pid, is_new=False)
        monkeypatch.setattr(container, "find_container", lambda *_: running)
        monkeypatch.setattr(container, "end_description", lambda *_: "s0: box has ended")
        wiring: Any = SimpleNamespace(
            fabric=fabric(1, 1), management=SimpleNamespace(network=IPv4Network("198.18.0.0/24"))
        )
        containers = ServerContainers(RunDirectory(tmp_path), wiring)
        fault = containers._try_join({}, [], "s0", ExistingContainer("box"))
        assert fault == "s0: box has ended"
        containers.close()


def test_fabrics_of_one_name_have_containers_of_different_names() -> None:
    names = {
        container.container_name(MARKS | {IDENTITY_VARIABLE: identity}, "s0")
        for identity in ("0123456789ab", "ba9876543210")
    }
    assert names == {"moefabric-lab-s0-01234567", "moefabric-lab-s0-ba987654"}


def test_engine_that_does_not_answer_in_time_is_an_error_of_the_server() -> None:
    def run(*_: object, **__: object) -> None:
        raise ReadTimeout("Read timed out. (read timeout=180.0)")

    engine: Any = SimpleNamespace(containers=SimpleNamespace(run=run))
    marks = MARKS | {IDENTITY_VARIABLE: "0123456789ab"}
    with pytest.raises(FabricError, match=r"^s0: the container engine failed .*`docker info`"):
        container.start_container(engine, marks, "s0", NewContainer("image"), {})
