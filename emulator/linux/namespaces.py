"""Network namespaces: enter them, run functions inside them and read their sockets."""

import ctypes
import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, TypeVar

from moefabric.core.errors import FabricError
from moefabric.runtime.waiting import BackgroundTask, Deadline

_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
NO_IPV6: Final = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
"""IPv6 is off, because its neighbour and router discovery would add packets to the links."""
_VISITS_S: Final = 300.0
_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def path_of(pid: int) -> str:
    """Return the path of a process's network namespace."""
    return f"/proc/{pid}/ns/net"


def enter_new() -> None:
    """Move the calling thread into a new network namespace, which its later children inherit.

    Raises:
        FabricError: without CAP_SYS_ADMIN.
    """
    if _LIBC.unshare(_CLONE_NEWNET) < 0:
        raise FabricError(
            f"no network namespace of its own: {_last_error()}; run as root (CAP_SYS_ADMIN)"
        )


def enter(place: str | int) -> None:
    """Move the calling thread into the network namespace at a path, or that of a process.

    Raises:
        FabricError: if the namespace doesn't exist or the thread may not enter it.
    """
    path = place if isinstance(place, str) else path_of(place)
    try:
        with Path(path).open("rb") as namespace:
            failed = _LIBC.setns(namespace.fileno(), _CLONE_NEWNET) < 0
    except OSError as error:
        raise FabricError(f"no namespace {path}: {error.strerror}") from error
    if failed:
        raise FabricError(f"can't enter namespace {path}: {_last_error()}")


def _last_error() -> str:
    return os.strerror(ctypes.get_errno())


def run_in(place: str | int, function: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Run a function in another network namespace, in a thread, and return its result.

    Programs that the function starts are in that namespace too.

    Args:
        place: the path of the namespace, or the pid of a process that is in it.
        function: what to run.
        timeout_s: limit of the wait for the result.

    Raises:
        FabricError: if the namespace can't be entered, or after `timeout_s`.
    """
    name = f"the answer from namespace {place}"
    return _run_in_thread(name, partial(enter, place), function, timeout_s)


def run_in_new(function: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Run a function in a new network namespace, and remove the namespace; return its result.

    Raises:
        FabricError: without CAP_SYS_ADMIN, or after `timeout_s`.
    """
    return _run_in_thread("the answer from a new namespace", enter_new, function, timeout_s)


@contextmanager
def held() -> Iterator[str]:
    """Yield a path of the calling thread's namespace that leads there from others, too."""
    with Path("/proc/thread-self/ns/net").open("rb") as namespace:
        yield f"/proc/{os.getpid()}/fd/{namespace.fileno()}"


@contextmanager
def held_new() -> Iterator[str]:
    """Make a network namespace that exists as long as this process, and yield its path.

    Raises:
        FabricError: without CAP_SYS_ADMIN.
    """
    with ExitStack() as undo:
        yield run_in_new(lambda: undo.enter_context(held()))


def run_in_each(visits: Iterable[tuple[str | int, Callable[[], object]]]) -> None:
    """Run a function in each of many namespaces, one after the other in one thread.

    Args:
        visits: paths of network namespaces or pids, each with the function to run there.
    """

    def visit_all() -> None:
        for place, function in visits:
            enter(place)
            function()

    BackgroundTask("the answer from the namespaces", visit_all).result(Deadline.after(_VISITS_S))


def _run_in_thread(
    name: str, enter_namespace: Callable[[], None], function: Callable[[], T], timeout_s: float
) -> T:
    """Run a function in a thread of its own, which first changes its namespace."""

    def enter_and_run() -> T:
        enter_namespace()
        return function()

    return BackgroundTask(name, enter_and_run).result(Deadline.after(timeout_s))


def disable_ipv6() -> None:
    """Disable IPv6 on all interfaces of the calling thread's namespace."""
    set_sysctls(NO_IPV6)


def set_sysctls(values: dict[str, str]) -> None:
    """Write sysctls of the calling thread's namespace; skip those that this kernel lacks.

    Args:
        values: by dotted name, such as `net.ipv6.conf.all.disable_ipv6`.
    """
    try:
        _write_sysctls(values)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        BackgroundTask("/proc/sys", partial(_write_in_container, values)).result(Deadline.after(30))


def read_sysctls(names: Iterable[str]) -> dict[str, str]:
    """Return sysctls of the calling thread's namespace by dotted name; skip unknown ones."""
    paths = {name: Path("/proc/sys", *name.split(".")) for name in names}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def _write_sysctls(values: dict[str, str]) -> None:
    """Write sysctls; look up each folder of a namespace once, which is slow among many of them."""
    with ExitStack() as opened:
        folders = dict[str, int]()
        for key, value in values.items():
            net, family, name = key.split(".", 2)
            with suppress(FileNotFoundError):
                if family not in folders:
                    folders[family] = os.open(f"/proc/sys/{net}/{family}", os.O_PATH)
                    opened.callback(os.close, folders[family])
                place = folders[family]
                sysctl = os.open(name.replace(".", "/"), os.O_WRONLY, dir_fd=place)
                try:
                    os.write(sysctl, value.encode())
                finally:
                    os.close(sysctl)


def _write_in_container(values: dict[str, str]) -> None:
    """Remount Docker's read-only /proc/sys as writable in a mount namespace of this thread."""
    if (
        _LIBC.unshare(_CLONE_NEWNS) < 0
        or _LIBC.mount(None, b"/proc/sys", None, _MS_REMOUNT | _MS_BIND, None) < 0
    ):
        raise FabricError(f"/proc/sys is read-only: {_last_error()}; run as root (CAP_SYS_ADMIN)")
    _write_sysctls(values)


def listening_addresses() -> set[tuple[str, int]]:
    """Return the IPv4 addresses and TCP ports with listeners in the calling thread's namespace."""
    return {local for local, _, state in _tcp_sockets() if state == _LISTEN}


def connection_counts() -> Counter[tuple[str, int]]:
    """Count the TCP connections of the calling thread's namespace by remote address and port."""
    return Counter(remote for _, remote, state in _tcp_sockets() if state == _ESTABLISHED)


def _tcp_sockets() -> Iterator[tuple[tuple[str, int], tuple[str, int], str]]:
    """Yield local end, remote end and state of every TCP socket (proc(5), /proc/net/tcp)."""
    for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        yield _parse_end(local), _parse_end(remote), state


def _parse_end(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    number = int.from_bytes(bytes.fromhex(address), sys.byteorder)
    return str(IPv4Address(number)), int(port, 16)
