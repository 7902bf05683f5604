"""Run directories that look like those of running fabrics, without anything that runs."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from moefabric.core.topology import Fabric
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from tests.support.fabrics import fabric


@contextmanager
def running(
    root: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], shape: Fabric | None = None
) -> Iterator[None]:
    """Let fabrics of these names seem to run; all have the same parts."""
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(root))
    monkeypatch.delenv("MOEFABRIC_FABRIC", raising=False)
    with ExitStack() as held:
        for name in names:
            run_dir = RunDirectory(root / name)
            run_dir.path.mkdir(parents=True)
            for file in (run_dir.path / "lock", run_dir.control_socket, run_dir.token_file):
                file.touch()
            life = os.open(run_dir.life_file, os.O_WRONLY | os.O_CREAT)
            held.callback(os.close, life)
            fcntl.flock(life, fcntl.LOCK_EX)
            wired = replace(shape or fabric(), name=name)
            wiring = FabricWiring(wired, ManagementNetwork.example_for(wired))
            run_dir.wiring_file.write_text(wiring.to_json())
            run_dir.write_version()
            run_dir.log_folder.mkdir()
        yield
