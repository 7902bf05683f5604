"""Containers of a fabric's servers: started or joined, watched, and given back or removed."""

import json
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from typing import Any, Final

from moefabric.core.errors import FabricError
from moefabric.core.server_container import NewContainer, ServerContainer
from moefabric.emulator.containers import container, engine
from moefabric.emulator.containers.container import RunningContainer
from moefabric.emulator.fabric import management_uplink
from moefabric.emulator.fabric.host_names import host_names
from moefabric.emulator.linux import cgroups, namespaces
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import mark_environment
from moefabric.runtime.run_directory import FabricWiring, RunDirectory, ServerInterfaces

CONTAINERS: Final = "containers.json"
"""File of the run directory with the containers that are servers."""
_PARALLEL: Final = 8


@dataclass(frozen=True)
class JoinedServer:
    """Server that is a container.

    Attributes:
        interfaces: names of its interfaces.
        sysctls: values, before the fabric, of the sysctls that the fabric changes.
        loopback: addresses that it gets on its loopback interface.
    """

    container: RunningContainer
    interfaces: ServerInterfaces
    sysctls: Mapping[str, str] = field(default_factory=dict)
    loopback: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """Path of its network namespace."""
        return namespaces.path_of(self.container.pid)


def pull_images(containers: Mapping[str, ServerContainer], on_stage: Callable[[str], None]) -> None:
    """Pull the images that the engine lacks.

    Raises:
        FabricError: names an image that can't be pulled.
        UnsupportedError: if there is no engine.
    """
    if not containers:
        return
    new = [spec for spec in containers.values() if isinstance(spec, NewContainer)]
    with closing(engine.connect()) as client:
        for image in dict.fromkeys(spec.image for spec in new):
            if not container.has_image(client, image):
                on_stage(f"image {image}")
                container.pull_image(client, image)


class ServerContainers:
    """The containers of one fabric. `close` removes those that it has started."""

    def __init__(self, run_dir: RunDirectory, wiring: FabricWiring) -> None:
        """Start nothing yet."""
        self.joined: dict[str, JoinedServer] = {}
        self._run_dir, self._wiring = run_dir, wiring
        self.ends: dict[str, int] = {}
        """Pidfd, by server, of the first process of its container."""
        self._engine: Any = None

    def start(self, sysctls: Iterable[str]) -> None:
        """Start or find all containers, and note the fabric's changes to existing ones.

        Args:
            sysctls: names of the sysctls that the fabric changes.

        Raises:
            FabricError: lists the servers whose containers can't be used.
            UnsupportedError: if there is no engine.
        """
        containers = self._wiring.containers
        if not containers:
            return
        self._write_record()  # from now on, there may be containers
        self._engine = engine.connect()
        marks = mark_environment(self._run_dir.name)
        container.remove_containers(container.leftover_containers(self._engine, marks))
        names = list(sysctls)
        with ThreadPoolExecutor(_PARALLEL) as threads:
            join = partial(self._try_join, marks, names)
            results = threads.map(join, containers.keys(), containers.values())
        if faults := [fault for fault in results if fault]:
            raise FabricError("\n".join(faults))
        self._check_shared()
        self._write_record()

    def _try_join(
        self, marks: Mapping[str, str], sysctls: list[str], server: str, spec: ServerContainer
    ) -> str:
        """Join a server's container to the fabric; return its errors."""
        try:
            if isinstance(spec, NewContainer):
                named = host_names(self._wiring.fabric, self._wiring.management)
                hosts = {name: address for address, names in named for name in names}
                running = container.start_container(self._engine, marks, server, spec, hosts)
            else:
                running = container.find_container(self._engine, server, spec)
            loopback = self._wiring.fabric.addressing.addresses(server)[1:]
            visit = partial(_join, running, sysctls, self._networks(), loopback)
            try:
                self.ends[server] = os.pidfd_open(running.pid)
                self.joined[server] = namespaces.run_in(running.pid, visit)
            except (ProcessLookupError, FabricError):
                if server in self.ends and not _has_ended(self.ends[server]):
                    raise
                return container.end_description(self._engine, server, running)
        except FabricError as error:
            text = str(error)
            return text if text.startswith(f"{server}: ") else f"{server}: {text}"
        return ""

    def _networks(self) -> list[IPv4Network]:
        """Return the networks that servers reach through the fabric."""
        fabric = self._wiring.fabric
        regions = [fabric.addressing.prefix(region.name) for region in fabric.regions]
        return [*regions, self._wiring.management.network]

    def _check_shared(self) -> None:
        """Raise an error if two servers share a network namespace, or a container has ended."""
        owner: dict[int, str] = {}
        for server, joined in self.joined.items():
            try:
                namespace = Path(joined.network).stat().st_ino
            except FileNotFoundError as error:
                text = container.end_description(self._engine, server, joined.container)
                raise FabricError(text) from error
            other = owner.setdefault(namespace, server)
            if other != server:
                raise FabricError(f"{server}: its container is in the network of {other}'s")

    def _write_record(self) -> None:
        record = {server: asdict(joined) for server, joined in self.joined.items()}
        (self._run_dir.path / CONTAINERS).write_text(json.dumps(record))

    @property
    def guests(self) -> frozenset[str]:
        """The servers whose containers existed before the fabric."""
        return frozenset(s for s, joined in self.joined.items() if not joined.container.is_new)

    @property
    def interfaces(self) -> dict[str, ServerInterfaces]:
        """The interfaces of the servers that are containers."""
        return {server: joined.interfaces for server, joined in self.joined.items()}

    def share_limits(self, server: str, pid: int) -> Iterator[str]:
        """Give an agent the limits of its server's container; yield why that is impossible."""
        try:
            cgroups.join(pid, self.joined[server].container.pid)
        except FabricError as error:
            limits = "its container's limits of CPU and memory"
            yield f"{server}: its agent is outside {limits}: {error}"

    def _ended(self) -> dict[str, RunningContainer]:
        """Return the containers that have ended, by server."""
        ended = (s for s, fd in self.ends.items() if s in self.joined and _has_ended(fd))
        return {server: self.joined[server].container for server in ended}

    def faults(self) -> list[str]:
        """Describe the containers that have ended."""
        describe = partial(container.end_description, self._engine)
        return [describe(server, running) for server, running in self._ended().items()]

    def describe(self, server: str) -> dict[str, Any]:
        """Return a server's container for `inspect --json`; nothing if it isn't a container."""
        if server not in self.joined:
            return {}
        running = self.joined[server].container
        facts: dict[str, Any] = {"name": running.name, "id": running.id, "image": running.image}
        facts |= {"pid": running.pid, "started_by_fabric": running.is_new}
        return {"interface": self.joined[server].interfaces.host, "container": facts}

    def close(self) -> None:
        """Remove started containers, and leave existing ones as they were."""
        ended = self._ended()  # their process numbers may be others' by now
        running = [server for name, server in self.joined.items() if name not in ended]
        for fd in self.ends.values():
            os.close(fd)
        self.ends.clear()
        if self._engine is not None:
            with closing(self._engine):
                _give_back(self._run_dir.name, running)
                _remove_all(self._engine, self._run_dir.name)
            self._engine = None


def _has_ended(pidfd: int) -> bool:
    """Return whether a process has ended; its parent may not have taken its status yet."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _join(
    running: RunningContainer,
    sysctls: list[str],
    networks: list[IPv4Network],
    loopback: tuple[str, ...],
) -> JoinedServer:
    """Choose names for the interfaces of a container; the caller is in its network namespace.

    Raises:
        FabricError: if the container is a server of another fabric, or has a network that the
            fabric needs.
    """
    if running.is_new:
        return JoinedServer(running, ServerInterfaces())
    if owners := management_uplink.marked_fabrics():
        raise FabricError(f"{running.name} is a server of fabric {owners[0]} already")
    for network in management_uplink.routed_networks():
        if any(network.overlaps(needed) for needed in networks):
            raise FabricError(
                f"{running.name} has the network {network} already, which the fabric needs: take "
                "it out of that network"
            )
    taken = {name for _, name in socket.if_nameindex()}
    free = (
        next(name for number in count() if (name := f"{kind}{number}") not in taken)
        for kind in ("eth", "mgmt")
    )
    former = namespaces.read_sysctls(sysctls)
    return JoinedServer(running, ServerInterfaces(*free), former, loopback)


def _give_back(fabric: str, joined: Iterable[JoinedServer]) -> None:
    """Remove a fabric's interfaces and settings from containers that existed before it."""
    for server in joined:
        if not server.container.is_new:
            with suppress(FabricError):  # the container has ended, and its network with it
                namespaces.run_in(server.network, partial(_restore, fabric, server))


def _restore(fabric: str, server: JoinedServer) -> None:
    """Restore the network of a container; the caller is in its network namespace."""
    management_uplink.remove_leftovers(fabric)
    for address in server.loopback:
        with suppress(FabricError):  # it has not got that address
            run(["ip", "address", "delete", f"{address}/32", "dev", "lo"])
    namespaces.set_sysctls(dict(server.sysctls))


def _remove_all(client: Any, fabric: str) -> int:
    """Remove the containers that were started for a fabric; return their number."""
    leftovers = container.leftover_containers(client, mark_environment(fabric))
    if faults := container.remove_containers(leftovers):
        raise FabricError("\n".join(f"{fabric}: container {fault}" for fault in faults))
    return len(leftovers)


def container_of(run_dir: RunDirectory, server: str) -> str | None:
    """Return the ID of the container that is a server of a running fabric, if it is one."""
    entry = (recorded_containers(run_dir) or {}).get(server)
    return None if entry is None else entry.container.id


def recorded_containers(run_dir: RunDirectory) -> dict[str, JoinedServer] | None:
    """Return the servers of a fabric that are containers; None if it has had none."""
    file = run_dir.path / CONTAINERS
    if not file.exists():
        return None
    from pydantic import TypeAdapter  # takes 0.3 s, which fabrics without containers avoid

    try:
        return TypeAdapter(dict[str, JoinedServer]).validate_json(file.read_bytes())
    except (OSError, ValueError):
        return {}


def remove_leftovers(fabric: str, joined: Mapping[str, JoinedServer]) -> bool:
    """Remove the containers of a fabric whose process has ended, and give existing ones back.

    Args:
        fabric: its name.
        joined: the servers that were containers.

    Returns:
        Whether there was a container of it.

    Raises:
        FabricError: if the engine can't remove one.
        UnsupportedError: if the engine doesn't answer.
    """
    with closing(engine.connect()) as client:
        _give_back(fabric, [server for server in joined.values() if _still_runs(client, server)])
        return bool(_remove_all(client, fabric))


def _still_runs(client: Any, joined: JoinedServer) -> bool:
    """Return whether a container is the same process as when it was joined."""
    from docker.errors import APIError

    try:
        state = client.containers.get(joined.container.id).attrs["State"]
    except APIError:
        return False
    return state["Status"] == "running" and int(state["Pid"]) == joined.container.pid
