"""Hosts joined by programmable links, congestion controls, and an event loop for their sockets.

Links need root.

Example:
    Two hosts, and a link of 10 Mb/s with a delay of 5 ms::

        with link_between(LinkBehaviour(10e6, 5_000_000)) as net:
            near, far = net.hosts
            subprocess.run(near.argv("ping", "-c", "3", far.address), check=True)
            print(net.counters().lateness.p99_ns)
"""

from moefabric.core.link import LinkBehaviour, PathChoice, Scheduling
from moefabric.emulator.congestion.dctcp import dctcp
from moefabric.emulator.congestion.transports import LoadedTransport
from moefabric.emulator.congestion.window_table import ROW, ROWS, WindowTable, window_table
from moefabric.emulator.link.hosts import NIC, Host, LinkedHosts, link_between, star
from moefabric.emulator.link.lateness import Lateness
from moefabric.emulator.link.messages import RelayCounters
from moefabric.emulator.linux.command import run
from moefabric.runtime.event_loop import IN, NOW, OUT, EventLoop, Timer

__all__ = [
    "IN", "NIC", "NOW", "OUT", "ROW", "ROWS", "EventLoop", "Host", "Lateness", "LinkBehaviour",
    "LinkedHosts", "LoadedTransport", "PathChoice", "RelayCounters", "Scheduling", "Timer",
    "WindowTable", "dctcp", "link_between", "run", "star", "window_table",
]  # fmt: skip
