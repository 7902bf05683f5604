"""What users without a container engine are told."""

import gc
import sys
from pathlib import Path

import pytest

from moefabric.core.errors import UnsupportedError
from moefabric.core.server_container import ExistingContainer
from moefabric.emulator.containers.engine import connect
from moefabric.emulator.fabric.server_containers import pull_images


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(
        UnsupportedError,
        match=rf"^a container as server needs docker: {sys.executable} -m pip install docker$",
    ):
        connect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_silent_engine_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(UnsupportedError, match="none answers: start Docker, or set DOCKER_HOST"):
        connect()
    gc.collect()  # the docker package leaves a socket open


def test_fabric_without_containers_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    pull_images({}, print)
    with pytest.raises(UnsupportedError):
        pull_images({"s0": ExistingContainer("node")}, print)
