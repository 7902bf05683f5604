"""Connection to this machine's container engine: Docker, or another one with Docker's API."""

import os
import socket
from contextlib import closing
from typing import Any, Final

from moefabric.core.errors import UnsupportedError
from moefabric.runtime.missing_package import missing_package

_TIMEOUT_S: Final = 180.0
"""Limit of one request. An engine that builds an image on a busy disk starts containers slowly."""
_UNIX: Final = "unix://"
_USUAL_SOCKET: Final = f"{_UNIX}/var/run/docker.sock"


def connect() -> Any:
    """Return a client of the engine that DOCKER_HOST or the usual socket leads to.

    Raises:
        UnsupportedError: without the docker package, or if no engine of this machine answers.
    """
    try:
        import docker
    except ImportError as error:
        raise missing_package("a container as server", "docker") from error
    try:
        _check_socket(os.environ.get("DOCKER_HOST") or _USUAL_SOCKET)
        client = docker.DockerClient.from_env(timeout=_TIMEOUT_S)
    except (OSError, docker.errors.DockerException) as error:
        raise UnsupportedError(
            "containers as servers need a container engine, and none answers: start Docker, or set "
            "DOCKER_HOST to the socket of an engine (unix:///run/podman/podman.sock)"
        ) from error
    if not client.api.base_url.startswith("http+docker://"):
        address = client.api.base_url
        client.close()
        raise UnsupportedError(
            f"the container engine at {address} is another machine's: unset DOCKER_HOST, or give "
            "it a socket of this machine"
        )
    return client


def _check_socket(address: str) -> None:
    """Raise OSError if no engine listens on a Unix socket.

    The docker package would leave a socket open then.
    """
    if address.startswith(_UNIX):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_TIMEOUT_S)
            probe.connect(address.removeprefix(_UNIX))


def engine_description() -> str:
    """Return name and version of the engine.

    Raises:
        UnsupportedError: as `connect`.
    """
    with closing(connect()) as client:
        version = client.version()
    platform = version.get("Platform", {}).get("Name") or "Docker Engine"
    return f"{platform} {version['Version']}"
