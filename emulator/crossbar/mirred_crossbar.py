"""Crossbar of tc filters (u32 with the action mirred), for machines that refuse BPF.

It implements the Protocol `Crossbar` with these limits, which its user must report:

* Cross-connects change one by one, 0.1 ms each, instead of all at once.
* A thread of this process keeps the dark time; a cross-connect that has not settled when the
  process dies stays dark.
* Frames are not counted.
* The process that changes cross-connects needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import Lights, Ports
from moefabric.emulator.linux import namespaces, netlink

DEADLINE_S = 30.0


class MirredCrossbar:
    """Crossbar of tc filters; a thread in the ports' namespace changes the filters."""

    def __init__(self, ports: Ports, interfaces: Mapping[int, int], netns: str) -> None:
        """Take over the filters that exist on interfaces.

        Args:
            interfaces: Index of the interface by port.
            netns: Path of the interfaces' network namespace.

        Raises:
            FabricError: If the namespace can't be entered or an interface doesn't exist.
        """
        self.ports = ports
        self._interfaces = dict(interfaces)
        self._cross_connects: Lights = {}
        self._lit: dict[int, int] = {}
        self._thread = ThreadPoolExecutor(1, "crossbar")
        self._timer = threading.Timer(0, self._wake)
        self._run(partial(self._take_over, netns))

    def cross_connects(self) -> dict[tuple[int, int], int]:
        """Return the cross-connects."""
        return dict(self._cross_connects)

    def load(self, cross_connects: Lights) -> None:
        """Replace all cross-connects; return when the filters are in place."""
        self.ports.check(cross_connects)
        attached = {self.ports.inputs + port for port in self._interfaces}
        if missing := sorted({out for _, out in cross_connects} - attached):
            raise FabricError(f"crossbar {self.ports}: no interface is behind outputs {missing}")
        self._cross_connects = dict(cross_connects)
        self._run(self._apply_due)

    def close(self) -> None:
        """Release the crossbar; its cross-connects stay."""
        self._thread.shutdown()
        self._timer.cancel()

    def _run(self, task: Callable[[], None]) -> None:
        """Run a task in the thread."""
        try:
            self._thread.submit(task).result(DEADLINE_S)
        except TimeoutError as error:
            raise FabricError("crossbar of filters: the filters did not change in time") from error
        except (FabricError, OSError) as error:
            raise FabricError(f"crossbar of filters: {error}") from error

    def _take_over(self, netns: str) -> None:
        namespaces.enter(netns)
        netlink.execute(
            [netlink.ingress(f"port {port}", index) for port, index in self._interfaces.items()]
        )
        port_of = {index: port for port, index in self._interfaces.items()}
        for port, index in self._interfaces.items():
            if (target := netlink.redirect_target(index)) in port_of:
                self._lit[port] = self.ports.inputs + port_of[target]
        self._cross_connects = dict.fromkeys(self._lit.items(), 0)

    def _apply_due(self) -> None:
        """Apply the cross-connects that have light now, and return to the others in time."""
        self._timer.cancel()
        now_ns, lights = time.monotonic_ns(), self._cross_connects
        self._apply(dict(pair for pair, lit_at_ns in lights.items() if lit_at_ns <= now_ns))
        if settling_ns := [lit_at_ns for lit_at_ns in lights.values() if lit_at_ns > now_ns]:
            wait_s = max(0, min(settling_ns) - time.monotonic_ns()) / 1e9
            self._timer = threading.Timer(wait_s, self._wake)
            self._timer.daemon = True
            self._timer.start()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(self._apply_due)

    def _apply(self, target: Mapping[int, int]) -> None:
        """Delete filters before adding others, so that no output has the light of two inputs."""
        index = self._interfaces
        changed = dict(self._lit.items() ^ target.items())
        requests = [
            netlink.delete_filters(f"port {port}", index[port])
            for port in changed
            if port in self._lit
        ]
        requests += [
            netlink.redirect(f"port {port}", index[port], index[out - self.ports.inputs])
            for port, out in target.items()
            if port in changed
        ]
        netlink.execute(requests)
        self._lit = dict(target)
