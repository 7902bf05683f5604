"""Docker Engine, copy of the project, and image built from the copy."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors
import pytest
import yaml

ROOT = Path(__file__).parents[2]
BASE = "debian:bookworm-slim"
IMAGE = "moefabric:0.1.0"
LAYERS, ITERATIONS = 2, 1
"""Layers of the prototype in containers: enough for reconfigurations under traffic."""
SHORT = "short.yaml"
EXCLUDED = shutil.ignore_patterns(
    ".git", ".venv", "out", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)


@dataclass(frozen=True)
class CompletedCommand:
    """Exit status and output of a command."""

    status: int
    text: str


@dataclass(frozen=True)
class Project:
    """Copy of the project with its own folder and Compose project name."""

    folder: Path
    name: str

    def compose(self, *words: str, timeout_s: float) -> CompletedCommand:
        """Run `docker compose WORDS` in the copy."""
        completed = subprocess.run(
            ["docker", "compose", *words],
            cwd=self.folder,
            env={**os.environ, "COMPOSE_PROJECT_NAME": self.name, "COMPOSE_ANSI": "never"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            text=True,
            check=False,
        )
        return CompletedCommand(completed.returncode, completed.stdout)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """Connect to the engine of DOCKER_HOST or the default socket."""
    client = docker.DockerClient.from_env(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Return a fresh clone with a short prototype; remove its containers and volumes at the end."""
    folder = tmp_path_factory.mktemp("project") / "moefabric"
    shutil.copytree(ROOT, folder, ignore=EXCLUDED, symlinks=True)
    _shorten(folder)
    here = Project(folder, f"moefabric-test-{os.getpid()}")
    yield here
    removed = here.compose("down", "--volumes", "--timeout", "5", timeout_s=120)
    assert removed.status == 0, removed.text


def _shorten(folder: Path) -> None:
    """Let Compose replace the prototype of the image by a short one."""
    spec = yaml.safe_load((folder / "examples/prototype.yaml").read_text())
    spec["model"]["layers"], spec["training"]["iterations"] = LAYERS, ITERATIONS
    (folder / SHORT).write_text(yaml.safe_dump(spec))
    mounted = f"./{SHORT}:/opt/moefabric/examples/prototype.yaml:ro"
    override = {"services": {"testbed": {"volumes": [mounted]}}}
    (folder / "docker-compose.override.yml").write_text(yaml.safe_dump(override))


@pytest.fixture(scope="session")
def base(engine: docker.DockerClient) -> str:
    """Return Debian's image, of a registry or made from Debian's archive."""
    with (ROOT / "packaging" / "base-image").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # another worker of the tests may make it just now
        _ensure_base(engine)
    return BASE


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient, base: str, project: Project) -> str:
    """Build the image by Compose, on Debian's image."""
    built = project.compose("build", "testbed", timeout_s=1200)
    assert built.status == 0, built.text
    return IMAGE


def _ensure_base(engine: docker.DockerClient) -> None:
    try:
        engine.images.get(BASE)
    except docker.errors.ImageNotFound:
        if not _pull_base(engine):
            completed = subprocess.run(
                [ROOT / "packaging" / "base-image", BASE], timeout=600, check=False
            )
            assert completed.returncode == 0, "packaging/base-image failed; see its output above"


def _pull_base(engine: docker.DockerClient) -> bool:
    """Pull the base image; return False if no registry has it or is reachable."""
    try:
        engine.images.pull(BASE)
    except docker.errors.APIError:
        return False
    return True
