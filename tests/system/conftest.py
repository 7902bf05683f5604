"""A Docker Engine, a copy of the project, and the image made of it."""

from __future__ import annotations

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
"""Of the prototype in containers: enough for light to move under traffic. `make demo` and the benches do all of it."""
SHORT = "short.yaml"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "out", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)


@dataclass(frozen=True)
class Said:
    """How a command ended, and all it said."""

    status: int
    text: str


@dataclass(frozen=True)
class Project:
    """A copy of the project in a folder of its own, under a Compose project name of its own."""

    folder: Path
    name: str

    def compose(self, *words: str, timeout_s: float) -> Said:
        """`docker compose WORDS` in the copy."""
        done = subprocess.run(
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
        return Said(done.returncode, done.stdout)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The engine that DOCKER_HOST or the usual socket leads to."""
    client = docker.DockerClient.from_env(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A copy as someone who has just cloned it has, but for a short prototype; its containers and volumes go at the end."""
    folder = tmp_path_factory.mktemp("project") / "moefabric"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT, symlinks=True)
    _shorten(folder)
    here = Project(folder, f"moefabric-test-{os.getpid()}")
    yield here
    ended = here.compose("down", "--volumes", "--timeout", "5", timeout_s=120)
    assert ended.status == 0, ended.text


def _shorten(folder: Path) -> None:
    """Have Compose put a short prototype in the place of the image's: the command and the image stay as they are."""
    spec = yaml.safe_load((folder / "examples/prototype.yaml").read_text())
    spec["model"]["layers"], spec["training"]["iterations"] = LAYERS, ITERATIONS
    (folder / SHORT).write_text(yaml.safe_dump(spec))
    mounted = f"./{SHORT}:/opt/moefabric/examples/prototype.yaml:ro"
    override = {"services": {"testbed": {"volumes": [mounted]}}}
    (folder / "docker-compose.override.yml").write_text(yaml.safe_dump(override))


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient, project: Project) -> str:
    """The project's image, built by Compose on the base that a registry or Debian's archive gives."""
    _have_base(engine)
    built = project.compose("build", "testbed", timeout_s=1200)
    assert built.status == 0, built.text
    return IMAGE


def _have_base(engine: docker.DockerClient) -> None:
    try:
        engine.images.get(BASE)
    except docker.errors.ImageNotFound:
        if not _pulled(engine):
            made = subprocess.run([ROOT / "packaging" / "base-image", BASE], timeout=600, check=False)
            assert made.returncode == 0, "make base-image failed; its words are above"


def _pulled(engine: docker.DockerClient) -> bool:
    """Whether a registry gave the base; where none can be reached, Debian's archive has to."""
    try:
        engine.images.pull(BASE)
    except docker.errors.APIError:
        return False
    return True
