"""Carrier of optical NICs: a veth interface has a carrier while its peer at the OCS is up."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from moefabric.core.errors import FabricError
from moefabric.emulator.crossbar.bpf_crossbar import interface_indices
from moefabric.emulator.linux import namespaces, netlink
from moefabric.runtime.event_loop import Timer, Timers

log = logging.getLogger(__name__)


class Carrier:
    """Sets the OCS ends of fibres down and up at the instants that the OCS gives."""

    def __init__(self, interfaces: Mapping[int, str], netns: str, timers: Timers) -> None:
        """Open a netlink socket in the namespace of the interfaces.

        Args:
            interfaces: name by port.
            netns: path of their network namespace.
            timers: clock and timers of the caller's event loop.

        Raises:
            FabricError: if an interface doesn't exist.
        """
        self._timers = timers
        self._index = namespaces.run_in(netns, lambda: interface_indices(interfaces))
        self._kernel = namespaces.run_in(netns, netlink.route_socket)
        self._is_up: dict[int, bool] = {}
        self._pending: dict[int, Timer] = {}

    def close(self) -> None:
        """Stop all changes; the interfaces stay as they are."""
        for timer in self._pending.values():
            timer.cancel()
        self._kernel.close()

    def change(self, links: Mapping[int, int | None]) -> None:
        """Set the instants from which ports have a link.

        Args:
            links: by port, the instant (CLOCK_MONOTONIC, ns) at which its link comes up; None for
                no link. The port has no link before that instant.
        """
        now_ns = self._timers.now_ns()
        links = {port: at_ns for port, at_ns in links.items() if port in self._index}
        for port in links.keys() & self._pending.keys():
            self._pending.pop(port).cancel()
        later = {port: at_ns for port, at_ns in links.items() if at_ns is not None}
        up = [port for port, at_ns in later.items() if at_ns <= now_ns]
        self._set(links.keys() - set(up), up=False)
        self._set(up, up=True)
        for port in later.keys() - set(up):
            self._pending[port] = self._timers.call_at(
                later[port], partial(self._set, [port], up=True)
            )

    def _set(self, ports: Iterable[int], *, up: bool) -> None:
        """Set ports up or down, except those already in that state; wait until that is done.

        What the kernel refuses is logged.
        """
        request = netlink.link_up if up else netlink.link_down
        changed = [port for port in ports if self._is_up.get(port) is not up]
        self._is_up |= dict.fromkeys(changed, up)
        requests = [request(f"the link of port {port}", self._index[port]) for port in changed]
        try:
            netlink.execute(requests, self._kernel)
        except FabricError as error:
            log.error("not set: %s", error)  # noqa: TRY400 - the error suffices
