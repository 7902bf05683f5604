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
from collections.abc import Mapping

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.crossbar import CrossConnect, Ports, check_cross_connects
from moefabric.emulator.linux import namespaces, netlink

DEADLINE_S = 30.0


class MirredCrossbar:
    """Crossbar of tc filters; a thread in the ports' namespace changes the filters."""

    def __init__(self, ports: Ports, interfaces: Mapping[int, int], netns: str) -> None:
        """Take over the filters that exist on interfaces.

        Args:
            ports: The ports.
            interfaces: Index of the interface by port.
            netns: Path of the interfaces' network namespace.

        Raises:
            FabricError: If the namespace can't be entered or an interface doesn't exist.
        """
        self.ports = ports
        self._interfaces, self._netns = dict(interfaces), netns
        self._cross_connects: dict[int, CrossConnect] = {}
        self._changed = threading.Condition()
        self._loads = self._applied_loads = 0
        self._error: str | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="crossbar", daemon=True)
        self._lit: dict[int, int] = {}
        with self._changed:
            self._thread.start()
            self._wait_applied()

    def cross_connects(self) -> dict[int, CrossConnect]:
        """Return the cross-connects by input port."""
        with self._changed:
            return dict(self._cross_connects)

    def load(self, cross_connects: Mapping[int, CrossConnect]) -> None:
        """Replace all cross-connects; return when the filters are in place."""
        check_cross_connects(self.ports, cross_connects)
        attached = {self.ports.inputs + port for port in self._interfaces}
        outputs = {cross_connect.out_port for cross_connect in cross_connects.values()}
        if missing := sorted(outputs - attached):
            raise FabricError(f"crossbar {self.ports}: no interface is behind outputs {missing}")
        with self._changed:
            self._cross_connects = dict(cross_connects)
            self._loads += 1
            self._changed.notify_all()
            self._wait_applied()

    def close(self) -> None:
        """Release the crossbar; its cross-connects stay."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=DEADLINE_S)

    def _wait_applied(self) -> None:
        """Wait, with the lock held, until the last load is in force."""
        in_time = self._changed.wait_for(
            lambda: self._error or self._applied_loads > self._loads, timeout=DEADLINE_S
        )
        if self._error or not in_time:
            raise FabricError(
                f"crossbar of filters: {self._error or 'the filters did not change in time'}"
            )

    def _run(self) -> None:
        try:
            namespaces.enter(self._netns)
            self._take_over()
            self._apply_changes()
        except (FabricError, OSError) as error:
            with self._changed:
                self._error = str(error)
                self._changed.notify_all()

    def _take_over(self) -> None:
        netlink.execute(
            [netlink.clsact(f"port {port}", index) for port, index in self._interfaces.items()]
        )
        port_of = {index: port for port, index in self._interfaces.items()}
        for port, index in self._interfaces.items():
            if (target := netlink.redirect_target(index)) in port_of:
                self._lit[port] = self.ports.inputs + port_of[target]
        with self._changed:
            self._cross_connects = {
                port: CrossConnect(out_port, 0) for port, out_port in self._lit.items()
            }

    def _apply_changes(self) -> None:
        with self._changed:
            while not self._closing:
                now_ns = time.monotonic_ns()
                due = {
                    port: cross_connect.out_port
                    for port, cross_connect in self._cross_connects.items()
                    if cross_connect.lit_at_ns <= now_ns
                }
                self._apply(due)
                self._applied_loads = self._loads + 1
                self._changed.notify_all()
                instants_ns = [entry.lit_at_ns for entry in self._cross_connects.values()]
                settling_ns = [at_ns - now_ns for at_ns in instants_ns if at_ns > now_ns]
                self._changed.wait(min(settling_ns) / 1e9 if settling_ns else None)

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
