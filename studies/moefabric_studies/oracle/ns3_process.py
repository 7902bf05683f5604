"""Runs scenarios in ns-3: a JSON array on standard input, a line of JSON for each on output.

The program runs in the Python of an environment that has ns-3 (`ns3` of PyPI) and imports nothing
of this project. A scenario has one step and a transport. Flows are TCP connections over IPv4,
packets are forwarded by routers in the places of switches, and a circuit is a cable from NIC to
NIC. A server that forwards for others does so as a switch: each of its ports that sends packets of
other servers has the queue of a switch port, for its own packets as well.

Routers choose by destination address. A port therefore has an address of its own for each relay
tree, as an emulated fabric has a mark.

A point-to-point link adds 2 bytes to a packet where Ethernet adds 14. Link rates are reduced by
this ratio, so that a frame lasts as long as an Ethernet frame.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from ns import ns

_ETHERNET, _POINT_TO_POINT, _TCP_IP = 14, 2, 52
_FIRST_PORT: Final = 10_000
_TREE_NETWORKS: Final = 11 << 24
"""Cables have addresses in 10.0.0.0/8, relay trees in 11.0.0.0/8."""
_HOST_QUEUE: Final = "100000p"
"""A host holds packets back rather than dropping its own."""
_TIMEOUT_S: Final = 3600
_ENDLESS: Final = "3600s"
_FAIR_FLOWS: Final = 4096
"""Queues among which a fair host divides its flows by their hash."""
_SOCKET_TYPES: Final = {
    "cubic": "ns3::TcpCubic",
    "dctcp": "ns3::TcpDctcp",
    "reno": "ns3::TcpLinuxReno",
    "paced": "ns3::TcpLinuxReno",
}
_WRITE_BYTES: Final = 1 << 20
_WARM_S: Final = 0.05
"""Time in which warm connections carry their first bytes, before any flow starts."""


def main() -> None:
    """Run each scenario in a process forked from this one.

    ns-3 takes 20 seconds to load and to compile what its first simulation calls, and some of its
    assertions end the process with a code above 128. A simulation of more than an hour is ended,
    too.
    """
    scenarios = json.load(sys.stdin)
    for scenario in scenarios[:1]:
        _Simulation(_warm_up(scenario)).run()
    for scenario in scenarios:
        started = time.monotonic()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_TIMEOUT_S)
            _print_answer(_Simulation(scenario).run(), started)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 1:
            sys.exit(code)  # the child has printed why
        if code:
            [step] = scenario["steps"]
            _print_answer([{"end_s": None} for _ in step["flows"]], started)


def _warm_up(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    [step] = scenario["steps"]
    flows = [flow | {"bytes": 1} for flow in step["flows"]]
    return {**scenario, "steps": [step | {"flows": flows}], "limit_s": 0.001}


def _print_answer(flows: list[dict[str, float | int | None]], started: float) -> None:
    print(json.dumps({"flows": flows, "wall_s": time.monotonic() - started}), flush=True)


class _Simulation:
    """Nodes, cables and applications of a scenario."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        [step] = scenario["steps"]
        self.flows: Sequence[Mapping[str, Any]] = step["flows"]
        self.mtu: int = scenario["mtu"]
        self.transport: Mapping[str, Any] = scenario["transport"]
        self.warm_bytes: int = self.transport["warm_bytes"]
        self.opening_s = _WARM_S if self.warm_bytes else 0.0
        """When flows start; their ends are counted from then on."""
        self.limit_s: float = scenario["limit_s"] + self.opening_s
        self._set_defaults()
        names = dict.fromkeys(_node(end) for cable in scenario["cables"] for end in cable["ends"])
        self.nodes = ns.NodeContainer()
        self.nodes.Create(len(names))
        self.node = {name: self.nodes.Get(number) for number, name in enumerate(names)}
        ns.InternetStackHelper().Install(self.nodes)
        self.servers = {flow[end] for flow in self.flows for end in ("src", "dst")}
        self.transit = {(start, end) for flow in self.flows for start, end in flow["route"][1:]}
        """Directed links that carry packets of other nodes than their near end."""
        self.interface: dict[tuple[str, str], int] = {}
        """Interface at the near end of each directed link."""
        self.trees = list(dict.fromkeys(flow["tree"] for flow in self.flows))
        self.addresses: dict[tuple[str, str, str], Any] = {}
        """Address at the near end of each directed link, for each relay tree; "" is none."""
        self.devices: dict[tuple[str, str], Any] = {}
        self.kept = [self._cable(*item) for item in enumerate(scenario["cables"])]
        for outage in scenario["outages"]:
            self._outage(outage)
        self._install_routes()
        self.sinks = [self._applications(*item) for item in enumerate(self.flows)]

    def run(self) -> list[dict[str, float | int | None]]:
        """Return end and packets of each flow."""
        helper = ns.FlowMonitorHelper()
        monitor = helper.Install(self.nodes)
        ns.Simulator.Stop(ns.Seconds(self.limit_s))
        ns.Simulator.Run()
        answer = self._answer(monitor, helper.GetClassifier())
        ns.Simulator.Destroy()
        return answer

    def _set_defaults(self) -> None:
        ns.Config.Reset()
        ns.RngSeedManager.ResetNextStreamIndex()
        kind = ns.TypeId.LookupByName(_SOCKET_TYPES[self.transport["congestion_control"]])
        defaults = {
            "TcpL4Protocol::SocketType": ns.TypeIdValue(kind),
            "TcpSocket::SegmentSize": ns.UintegerValue(self.mtu - _TCP_IP),
            "TcpSocket::SndBufSize": ns.UintegerValue(self.transport["buffer_bytes"]),
            "TcpSocket::RcvBufSize": ns.UintegerValue(self.transport["buffer_bytes"]),
            "TcpSocket::InitialCwnd": ns.UintegerValue(self.transport["initial_window"]),
            "TcpSocket::DelAckTimeout": _seconds(self.transport["delayed_ack_s"]),
            "TcpSocketBase::MinRto": _seconds(self.transport["min_rto_s"]),
        }
        if self.transport["congestion_control"] == "dctcp":
            defaults["TcpSocketBase::UseEcn"] = ns.StringValue("On")
        for name, value in defaults.items():
            ns.Config.SetDefault(f"ns3::{name}", value)

    def _cable(self, number: int, cable: Mapping[str, Any]) -> Any:
        """Lay a cable; each has a /30 of its own, so no default queue discipline is installed."""
        helper = ns.PointToPointHelper()
        rate_bps = cable["rate_bps"] * (self.mtu + _POINT_TO_POINT) / (self.mtu + _ETHERNET)
        helper.SetDeviceAttribute("DataRate", ns.StringValue(f"{round(rate_bps)}bps"))
        helper.SetDeviceAttribute("Mtu", ns.UintegerValue(self.mtu))
        helper.SetChannelAttribute("Delay", _seconds(cable["delay_s"]))
        ends = cable["ends"]
        devices = helper.Install(*(self.node[_node(end)] for end in ends))
        for side, (near, far) in enumerate((ends, ends[::-1])):
            device = devices.Get(side)
            is_host = _node(near) in self.servers and (near, far) not in self.transit
            self._queue(device, is_host=is_host)
            address = ns.Ipv4Address(f"10.{number >> 6}.{number & 63}.{side + 1}")
            ipv4 = self.node[_node(near)].GetObject[ns.Ipv4]()
            interface = ipv4.AddInterface(device)
            mask = ns.Ipv4Mask("255.255.255.252")
            ipv4.AddAddress(interface, ns.Ipv4InterfaceAddress(address, mask))
            ipv4.SetUp(interface)
            self.interface[near, far] = interface
            self.addresses[near, far, ""] = address
            self.devices[near, far] = device
        return devices

    def _queue(self, device: Any, *, is_host: bool) -> None:
        length = _HOST_QUEUE if is_host else f"{self.transport['queue_packets']}p"
        discipline: tuple[Any, ...] = ()
        if self.transport["fair_hosts"] and is_host:
            endless = ns.StringValue(_ENDLESS)  # CoDel drops nothing
            discipline = (
                "ns3::FqCoDelQueueDisc", "Interval", endless, "Target", endless,
                "UseEcn", ns.BooleanValue(False), "Flows", ns.UintegerValue(_FAIR_FLOWS),
            )  # fmt: skip
        elif self.transport["congestion_control"] == "dctcp" and not is_host:
            mark = ns.DoubleValue(self.transport["mark_packets"])
            discipline = (
                "ns3::RedQueueDisc", "MinTh", mark, "MaxTh", mark, "QW", ns.DoubleValue(1.0),
                "MeanPktSize", ns.UintegerValue(self.mtu), "UseEcn", ns.BooleanValue(True),
                "UseHardDrop", ns.BooleanValue(False),
            )  # fmt: skip
        if discipline:
            helper = ns.TrafficControlHelper()
            most = ns.QueueSizeValue(ns.QueueSize(length))
            helper.SetRootQueueDisc(*discipline, "MaxSize", most)
            helper.Install(device)
            length = "1p"
        device.GetQueue().SetMaxSize(ns.QueueSize(length))

    def _outage(self, outage: Mapping[str, Any]) -> None:
        """Lose all packets of a cable in both directions for a time."""
        for near, far in (outage["ends"], outage["ends"][::-1]):
            model = ns.CreateObject[ns.RateErrorModel]()
            model.SetAttribute("ErrorRate", ns.DoubleValue(1.0))
            model.SetAttribute("ErrorUnit", ns.StringValue("ERROR_UNIT_PACKET"))
            device = self.devices[near, far]
            device.SetAttribute("ReceiveErrorModel", ns.PointerValue(model))
            _events().moefabric_outage(model, outage["from_s"], outage["until_s"])

    def _address(self, near: str, far: str, tree: str) -> Any:
        """Return the address of a link's near end in a relay tree.

        Each tree is a /16 of its own: TCP sends from the port's address in the network of the
        destination.
        """
        if (near, far, tree) not in self.addresses:
            network = _TREE_NETWORKS + (self.trees.index(tree) << 16)
            address = ns.Ipv4Address(network + len(self.addresses))
            ipv4 = self.node[_node(near)].GetObject[ns.Ipv4]()
            mask = ns.Ipv4Mask("255.255.0.0")
            ipv4.AddAddress(self.interface[near, far], ns.Ipv4InterfaceAddress(address, mask))
            self.addresses[near, far, tree] = address
        return self.addresses[near, far, tree]

    def _install_routes(self) -> None:
        """Install host routes to both ends of each flow, along its route and back."""
        known: dict[tuple[str, ...], int] = {}
        for flow in self.flows:
            links = [(start, end) for start, end in flow["route"]]
            back = [(end, start) for start, end in reversed(links)]
            for hops in (links, back):
                last = hops[-1]
                address = self._address(last[1], last[0], flow["tree"])
                for hop in hops:
                    node, interface = _node(hop[0]), self.interface[hop]
                    key = node, *last, flow["tree"]
                    if key not in known:
                        ipv4 = self.node[node].GetObject[ns.Ipv4]()
                        table = ns.Ipv4StaticRoutingHelper().GetStaticRouting(ipv4)
                        table.AddHostRouteTo(address, interface)
                    if known.setdefault(key, interface) != interface:
                        sys.exit(f"{node} would send to {last[1]} by two NICs: not supported")

    def _applications(self, number: int, flow: Mapping[str, Any]) -> Any:
        """Start the receiver of a flow and schedule its sender; return the receiver."""
        (source_port, next_port), (last_port, target_port) = flow["route"][0], flow["route"][-1]
        source = self._address(source_port, next_port, flow["tree"])
        target = self._address(target_port, last_port, flow["tree"])
        there = ns.InetSocketAddress(target, _FIRST_PORT + number).ConvertTo()
        receiver = ns.PacketSinkHelper("ns3::TcpSocketFactory", there)
        sink = receiver.Install(self.node[flow["dst"]])
        here = ns.InetSocketAddress(source, 0).ConvertTo()
        if self.warm_bytes:
            ends = self.node[flow["src"]], here, there
            start_s = self.opening_s + flow["start_s"]
            _events().moefabric_warm_sender(*ends, self.warm_bytes, _size(flow), start_s)
            return sink
        if self.transport["congestion_control"] == "paced":
            # It sends whole segments only: so many more bytes take the same time.
            segment = self.mtu - _TCP_IP
            whole = -(-_size(flow) // segment) * segment
            rate_bps = flow["rate_bps"] * whole / _size(flow)
            sender = ns.OnOffHelper("ns3::TcpSocketFactory", there)
            sender.SetConstantRate(ns.DataRate(round(rate_bps)), segment)
        else:
            sender = ns.BulkSendHelper("ns3::TcpSocketFactory", there)
            sender.SetAttribute("SendSize", ns.UintegerValue(_WRITE_BYTES))
        sender.SetAttribute("MaxBytes", ns.UintegerValue(_size(flow)))
        sender.SetAttribute("Local", ns.AddressValue(here))
        sender.Install(self.node[flow["src"]]).Start(ns.Seconds(flow["start_s"]))
        return sink

    def _answer(self, monitor: Any, classifier: Any) -> list[dict[str, float | int | None]]:
        answer: list[dict[str, float | int | None]] = [{"end_s": None} for _ in self.flows]
        for identity, stats in monitor.GetFlowStats():
            number = classifier.FindFlow(identity).destinationPort - _FIRST_PORT
            if not 0 <= number < len(self.flows):
                continue  # acknowledgements
            # A paced sender fills its last segment, so that more bytes may arrive.
            received = self.sinks[number].Get(0).GetTotalRx()
            complete = received >= self.warm_bytes + _size(self.flows[number])
            end_s = stats.timeLastRxPacket.GetSeconds() - self.opening_s
            answer[number] = {
                "end_s": end_s if complete else None,
                "sent_packets": stats.txPackets,
                "lost_packets": stats.txPackets - stats.rxPackets,
            }
        return answer


@cache
def _events() -> Any:
    """Compile `ns3_events.h`, and return its functions."""
    ns.cppyy.cppdef(Path(__file__).with_name("ns3_events.h").read_text())
    return ns.cppyy.gbl


def _seconds(value: float) -> Any:
    return ns.TimeValue(ns.Seconds(value))


def _size(flow: Mapping[str, Any]) -> int:
    size: float = flow["bytes"]
    return max(1, round(size))


def _node(port: str) -> str:
    return port.partition("/")[0]


if __name__ == "__main__":
    main()
