"""Life of a container that is a server: started or found, described, and removed."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.server_container import ExistingContainer, NewContainer
from moefabric.emulator.linux.marked_processes import RUN_DIR_VARIABLE
from moefabric.runtime.run_directory import FABRIC_VARIABLE, IDENTITY_VARIABLE

_LABEL: Final = "moefabric"
_PARALLEL: Final = 8
_NAME_DIGITS: Final = 8
"""Digits of a fabric's identity in the names of its containers."""
_END_S: Final = 2.0
"""Time in which the engine must notice the end of a container's process."""


@dataclass(frozen=True)
class RunningContainer:
    """Container that runs.

    Attributes:
        id: its ID.
        image: name of its image.
        pid: its first process, as this machine numbers it.
        is_new: whether it was started for the fabric.
    """

    id: str
    name: str
    image: str
    pid: int
    is_new: bool


def container_labels(marks: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a fabric's containers, besides the server's.

    Args:
        marks: the variables that mark the fabric's processes (`marked_processes`).
    """
    return {
        f"{_LABEL}.fabric": marks[FABRIC_VARIABLE],
        f"{_LABEL}.run-directory": marks[RUN_DIR_VARIABLE],
    }


def container_name(marks: Mapping[str, str], server: str) -> str:
    """Return the name of a server's container, which no other fabric's container has.

    One engine may serve several users, each with a fabric of the same name.
    """
    identity = marks[IDENTITY_VARIABLE][:_NAME_DIGITS]
    return f"{_LABEL}-{marks[FABRIC_VARIABLE]}-{server}-{identity}"


@contextmanager
def _engine_errors(subject: str) -> Iterator[None]:
    """Raise a FabricError that names the subject if the engine refuses or is silent."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    try:
        yield
    except APIError as error:
        raise FabricError(f"{subject}: {_explanation(error)}") from error
    except RequestException as error:
        remedy = "see whether `docker info` answers; `moefabric down` removes what it starts late"
        raise FabricError(f"{subject}: the container engine failed ({error}): {remedy}") from error


def has_image(engine: Any, image: str) -> bool:
    """Return whether the engine has an image.

    Raises:
        FabricError: if the engine doesn't answer.
    """
    from docker.errors import ImageNotFound

    with _engine_errors(image), suppress(ImageNotFound):
        engine.images.get(image)
        return True
    return False


def pull_image(engine: Any, image: str) -> None:
    """Pull an image from its registry.

    Raises:
        FabricError: if there is no such image or registry.
    """
    from docker.errors import APIError

    try:
        engine.images.pull(image)
    except APIError as error:
        remedy = f"`docker pull {image}`, or build it"
        raise FabricError(f"no image {image} ({_explanation(error)}): {remedy}") from error


def start_container(
    engine: Any,
    marks: Mapping[str, str],
    server: str,
    container: NewContainer,
    hosts: Mapping[str, str],
) -> RunningContainer:
    """Start the container of a server, without a network.

    Args:
        engine: client of the engine.
        marks: the variables that mark the fabric's processes.
        server: the server, which becomes the container's host name.
        container: what to start; the engine has its image.
        hosts: addresses of servers by name, for the container's /etc/hosts.

    Raises:
        FabricError: names the server and what the engine objects to.
    """
    from docker.errors import ImageNotFound

    with _engine_errors(server):
        try:
            started = engine.containers.run(
                container.image,
                list(container.command) or None,
                name=container_name(marks, server),
                hostname=server,
                detach=True,
                init=True,  # reaps the orphans of programs
                network_mode="none",
                labels=container_labels(marks) | {f"{_LABEL}.server": server},
                environment={**container.environment, **marks},
                nano_cpus=None if container.cpus is None else round(container.cpus * 1e9),
                mem_limit=container.memory_bytes,
                shm_size=container.shared_memory_bytes,
                volumes=list(container.volumes),
                user=container.user,
                extra_hosts=dict(hosts),
                dns_opt=["timeout:1", "attempts:1"],  # no server of names is reachable
            )
        except ImageNotFound as error:
            remedy = f"`docker pull {container.image}`, or build it"
            raise FabricError(f"{server}: no image {container.image}: {remedy}") from error
        started.reload()
    return _running(server, started, is_new=True)


def find_container(engine: Any, server: str, container: ExistingContainer) -> RunningContainer:
    """Return a container that the user has started.

    Raises:
        FabricError: if it doesn't run, or shares the network of others.
    """
    from docker.errors import NotFound

    with _engine_errors(server):
        try:
            existing = engine.containers.get(container.name)
        except NotFound as error:
            remedy = "start it before the fabric; `docker ps` lists those that run"
            raise FabricError(f"{server}: no container {container.name}: {remedy}") from error
    mode = existing.attrs["HostConfig"]["NetworkMode"]
    if mode == "host" or mode.startswith("container:"):
        shared = "this machine's" if mode == "host" else "another container's"
        remedy = "start it with a network of its own (--network none or bridge)"
        raise FabricError(f"{server}: {container.name} is in {shared} network: {remedy}")
    return _running(server, existing, is_new=False)


def _running(server: str, container: Any, *, is_new: bool) -> RunningContainer:
    """Return a container that the engine describes, if it runs and its process is visible."""
    pid = int(container.attrs["State"]["Pid"])
    if pid and not _is_visible(container.id, pid):
        _await_end(container)
    state = container.attrs["State"]
    if state["Status"] != "running":
        raise FabricError(f"{server}: {_end_text(container, is_new=is_new)}")
    if not _is_visible(container.id, pid):
        raise FabricError(
            f"{server}: the process of {container.name} is not to be seen from here: run moefabric "
            "on the engine's machine, or in a container with `pid: host`"
        )
    image = container.attrs["Config"]["Image"]
    return RunningContainer(container.id, container.name, image, pid, is_new)


def _is_visible(container: str, pid: int) -> bool:
    """Return whether a process of this machine belongs to a container, by its control groups."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _await_end(container: Any) -> None:
    """Wait until the engine knows of an end that the kernel knows; update the description."""
    from requests.exceptions import RequestException

    with suppress(RequestException):  # it hasn't ended
        container.wait(timeout=_END_S)
    container.reload()


def end_description(engine: Any, server: str, container: RunningContainer) -> str:
    """Describe the end of a server's container: its status and the last line of its log."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    with suppress(APIError, RequestException):
        existing = engine.containers.get(container.id)
        _await_end(existing)
        if existing.attrs["State"]["Status"] != "running":
            return f"{server}: {_end_text(existing, is_new=container.is_new)}"
    return f"{server}: its container {container.name} has ended"


def _end_text(container: Any, *, is_new: bool) -> str:
    """Describe why a container doesn't run, and the remedy."""
    state = container.attrs["State"]
    remedy = "a server's container has to run as long as the fabric"
    if is_new:
        remedy += ", by a command such as [sleep, infinity]"
    if state["Status"] in {"created", "paused", "restarting"}:
        return f"its container {container.name} is {state['Status']}; {remedy}"
    last = " ".join(container.logs(tail=1).decode(errors="replace").split())
    output = f", saying: {last}" if last else ""
    status = state["ExitCode"]
    return f"its container {container.name} has ended with status {status}{output}; {remedy}"


def leftover_containers(engine: Any, marks: Mapping[str, str]) -> list[Any]:
    """Return all containers that were started for a fabric, also ended ones.

    Raises:
        FabricError: if the engine doesn't answer.
    """
    labels = [f"{name}={value}" for name, value in container_labels(marks).items()]
    with _engine_errors(marks[FABRIC_VARIABLE]):
        return list(engine.containers.list(all=True, filters={"label": labels}, sparse=True))


def remove_containers(containers: Sequence[Any]) -> list[str]:
    """Kill and remove containers; return the engine's errors."""
    with ThreadPoolExecutor(_PARALLEL) as threads:
        return list(filter(None, threads.map(_remove, containers)))


def _remove(container: Any) -> str:
    from docker.errors import NotFound

    try:
        with _engine_errors(container.id[:12]), suppress(NotFound):
            container.remove(force=True, v=True)
    except FabricError as error:
        if "is already in progress" not in str(error):
            return str(error)
    return ""


def _explanation(error: Any) -> str:
    """Return the engine's message in one line."""
    return " ".join(str(error.explanation or error).split())
