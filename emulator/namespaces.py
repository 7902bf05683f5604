"""Network namespaces: leaving one for good, and doing something in another's place."""

import ctypes
import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final, TypeVar

from moefabric.errors import FabricError

_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def of(pid: int) -> str:
    """The path of a process's network namespace."""
    return f"/proc/{pid}/ns/net"


def leave() -> None:
    """Put the calling thread, and all that it will start, in a new network namespace. FabricError without CAP_SYS_ADMIN."""
    if _LIBC.unshare(_CLONE_NEWNET) < 0:
        raise FabricError(
            f"no network namespace of its own: {os.strerror(ctypes.get_errno())}; run as root (CAP_SYS_ADMIN)"
        )


def enter(path: str) -> None:
    """Put the calling thread in the network namespace at `path`. FabricError where that can't be."""
    try:
        with Path(path).open("rb") as namespace:
            failed = _LIBC.setns(namespace.fileno(), _CLONE_NEWNET) < 0
    except OSError as absent:
        raise FabricError(f"no namespace {path}: {absent.strerror}") from absent
    if failed:
        raise FabricError(f"can't enter namespace {path}: {os.strerror(ctypes.get_errno())}")


def within(path: str, do: Callable[[], T], timeout_s: float = 30.0) -> T:
    """What `do()` gives in the network namespace at `path`, by a thread that goes there; programs it starts are there too."""

    def there() -> T:
        enter(path)
        return do()

    return _beside(there, timeout_s, f"namespace {path}")


def visit(places: Iterable[tuple[str, Callable[[], object]]], timeout_s: float = 120.0) -> None:
    """Do something in each of many namespaces, given by their paths: by one thread that goes from one to the next."""

    def everywhere() -> bool:
        for path, do in places:
            enter(path)
            do()
        return True

    _beside(everywhere, timeout_s, "namespaces")


def _beside(do: Callable[[], T], timeout_s: float = 30.0, place: str = "a thread beside") -> T:
    """What `do()` gives in a thread of its own, whose namespaces end with it."""
    given: list[T] = []
    raised: list[BaseException] = []

    def answer() -> None:
        try:
            given.append(do())
        except BaseException as fault:  # noqa: BLE001 - raised again in the caller's thread
            raised.append(fault)

    thread = threading.Thread(target=answer, name=place, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    if not given:
        raise FabricError(f"{place}: no answer within {timeout_s:g} s")
    return given[0]


def set_sysctls(values: dict[str, str]) -> None:
    """Write sysctls (`net.ipv6.conf.all.disable_ipv6`) of the calling thread's namespace; those that this kernel lacks are left."""
    try:
        _write_sysctls(values)
    except OSError as refused:
        if refused.errno != errno.EROFS:
            raise
        _beside(lambda: _write_sysctls_in_container(values))


def _write_sysctls(values: dict[str, str]) -> None:
    for key, value in values.items():
        path = Path("/proc/sys", *key.split("."))
        if path.exists():
            path.write_text(value)


def _write_sysctls_in_container(values: dict[str, str]) -> None:
    """Docker mounts /proc/sys for reading alone: the calling thread gets mounts of its own, in which it is not."""
    if (
        _LIBC.unshare(_CLONE_NEWNS) < 0
        or _LIBC.mount(None, b"/proc/sys", None, _MS_REMOUNT | _MS_BIND, None) < 0
    ):
        raise FabricError(
            f"/proc/sys is read-only: {os.strerror(ctypes.get_errno())}; run as root (CAP_SYS_ADMIN)"
        )
    _write_sysctls(values)


def listening() -> set[tuple[str, int]]:
    """The IPv4 addresses and TCP ports that are listened on in the calling thread's namespace."""
    return {local for local, _, state in _sockets() if state == _LISTEN}


def connections() -> Counter[tuple[str, int]]:
    """How many TCP connections the calling thread's namespace has to each IPv4 address and port."""
    return Counter(remote for _, remote, state in _sockets() if state == _ESTABLISHED)


def _sockets() -> Iterator[tuple[tuple[str, int], tuple[str, int], str]]:
    """Local and remote end and state of every TCP socket (proc(5), /proc/net/tcp)."""
    for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        yield _end(local), _end(remote), state


def _end(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    number = int.from_bytes(bytes.fromhex(address), sys.byteorder)
    return str(IPv4Address(number)), int(port, 16)
