"""The packet switches of one controller over OpenFlow 1.3, by Ryu: with `messages` and `wire`, all that knows Ryu.

A switch that connects is given every rule it should have, whatever it had: the controller says what is, and never asks. Each controller process
marks its entries with a cookie of its own, by which what an earlier one left is found and removed, after the new entries are in place.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any

from controller.southbound.openflow import arp, light_probe, messages
from controller.southbound.openflow.entries import entry
from controller.southbound.openflow.green import GreenEvent, listen
from controller.southbound.openflow.wire import Wire

# isort: split
import eventlet
from ryu import cfg
from ryu.base.app_manager import AppManager, RyuApp
from ryu.controller.controller import datapath_connection_factory
from ryu.controller.ofp_handler import OFPHandler
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser

from moefabric.errors import ControlError
from moefabric.rules import Rule, RuleChange
from moefabric.topology import Fabric

logging.getLogger("ryu").setLevel(logging.WARNING)  # at INFO it names its own parts


@dataclass
class _Batch:
    """Messages to one switch, sent together, and the barrier that tells when all of them are done."""

    switch: str
    barrier: int
    said: dict[int, str]
    done: Any = field(default_factory=eventlet.Event)
    faults: list[str] = field(default_factory=list)

    def end(self, fault: str | None = None) -> None:
        """Let go of whoever waits for it."""
        if fault:
            self.faults.append(fault)
        if not self.done.ready():
            self.done.send()


@dataclass(frozen=True)
class Counter:
    """What an entry has carried since it was put in."""

    rule: Rule
    packets: int
    bytes: int


class RyuSwitches:
    """Some switches of a fabric, the rules they should have, and Ryu between the two."""

    def __init__(
        self, fabric: Fabric, switches: Sequence[str], base: Iterable[Rule], deadline_s: float = 5.0
    ) -> None:
        """`switches` are the controller's own, `base` the rules they have without light, `deadline_s` how long a change may take."""
        self.fabric, self.switches, self.deadline_s = fabric, tuple(switches), deadline_s
        self.cookie = SystemRandom().getrandbits(messages.COOKIE_BITS) & ~1  # all ones is OpenFlow's own
        self._named = {fabric.dpid(switch): switch for switch in switches}
        self._rules = {rule.match: rule for rule in base}
        self._plugged = {
            switch: {number: name for name, number in fabric.ports(switch).items()} for switch in switches
        }
        self._known = arp.knowledge(fabric)
        self._datapaths: dict[str, Any] = {}
        self._ready: set[str] = set()
        self._batches: dict[tuple[str, int], _Batch] = {}
        self._serialised: dict[tuple[Rule, bool], bytes] = {}
        self._stats: dict[tuple[str, int], list[Any]] = {}
        self._packet_outs: dict[tuple[int, int], bytes] = {}
        self.probe = light_probe.OpenFlowProbe(fabric, self._emit, GreenEvent)
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever a switch has confirmed all its rules."""
        self.on_port: Callable[[str, str, bool], None] = lambda _switch, _port, _up: None
        """Called with a switch, what is plugged into one of its ports, and whether that has a link: when it connects, and at each change."""

    def listen(self, address: tuple[str, int]) -> None:
        """Take the switches' connections from now on. ControlError if the address is taken."""
        cfg.CONF(args=[], project="ryu", default_config_files=[])
        cfg.CONF.set_override("echo_request_interval", 5.0)
        cfg.CONF.set_override("maximum_unreplied_echo_requests", 3)
        manager = AppManager.get_instance()
        apps = [manager.instantiate(Wire, self), manager.instantiate(OFPHandler)]
        for app in apps:
            RyuApp.start(app)  # not OFPHandler's own, which would listen where nobody hears of a failure
        listen(address, "switches", datapath_connection_factory)

    @property
    def ready(self) -> tuple[str, ...]:
        """The switches that are connected and have confirmed all their rules."""
        return tuple(switch for switch in self.switches if switch in self._ready)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the switches should have, sorted."""
        return tuple(sorted(self._rules.values(), key=lambda rule: rule.match))

    # --- what is asked of the switches -------------------------------------------------------------------------------

    def change(self, change: RuleChange) -> None:
        """Make the change on every switch concerned, on all at once; returns when each has confirmed it by a barrier.

        ControlError names the switches that are absent, silent or refuse, and the rules they refuse. They get the new rules when they connect again.
        """
        for rule in change.delete:
            self._rules.pop(rule.match, None)
        self._rules |= {rule.match: rule for rule in change.add}
        batches, faults = list[_Batch](), list[str]()
        for switch in change.switches:
            if datapath := self._datapaths.get(switch):
                batches.append(self._send(switch, datapath, self._mods(switch, change)))
            else:
                faults.append(f"{switch}: not connected")
        faults += self._awaited(batches)
        if faults:
            raise ControlError("; ".join(faults))

    def counters(self) -> dict[str, list[Counter]]:
        """What each rule of each connected switch has carried. ControlError if one doesn't answer."""
        asked = messages.statistics_request()
        batches = [
            self._send(switch, datapath, [(asked, "flow statistics")])
            for switch, datapath in self._datapaths.items()
        ]
        if faults := self._awaited(batches):
            raise ControlError("; ".join(faults))
        return {batch.switch: self._counted(batch) for batch in batches}

    def _awaited(self, batches: Iterable[_Batch]) -> list[str]:
        """Wait for all of them; what went wrong."""
        faults = list[str]()
        with eventlet.Timeout(self.deadline_s, False):
            for batch in batches:
                batch.done.wait()
        for batch in batches:
            self._batches.pop((batch.switch, batch.barrier), None)
            if not batch.done.ready():
                faults.append(f"{batch.switch}: no confirmation within {self.deadline_s:g} s")
            faults += batch.faults
        return faults

    def _counted(self, batch: _Batch) -> list[Counter]:
        flows = [flow for xid in batch.said for flow in self._stats.pop((batch.switch, xid), [])]
        by_match = {
            entry(self.fabric, rule).match: rule
            for rule in self._rules.values()
            if rule.switch == batch.switch
        }
        found = [(by_match.get(messages.seen_match(flow)), flow) for flow in flows]
        return sorted(
            (Counter(rule, flow.packet_count, flow.byte_count) for rule, flow in found if rule is not None),
            key=lambda counter: counter.rule.match,
        )

    # --- what Ryu tells ----------------------------------------------------------------------------------------------

    def enters(self, datapath: Any) -> None:
        """A switch has connected: give it all its rules, then remove what is of an earlier controller."""
        switch = self._named.get(datapath.id)
        if switch is None:
            datapath.close()
            return
        self._datapaths[switch] = datapath
        mods = [
            (self._mod(rule, add=True), str(rule)) for rule in self._rules.values() if rule.switch == switch
        ]
        if switch in self.fabric.index:
            mods.append((messages.arp_to_controller(self.cookie), f"{switch}: ARP to the controller"))
            probes = messages.probes_to_controller(self.cookie, light_probe.ETHERTYPE)
            mods.append((probes, f"{switch}: probes of light to the controller"))
        mods.append((messages.BARRIER, "barrier"))
        mods += [
            (message, "removal of entries that are not ours")
            for message in messages.deletions_of_others(self.cookie)
        ]
        eventlet.spawn(self._settle_in, datapath, self._send(switch, datapath, mods))
        self.sees(datapath, datapath.ports.values())

    def _settle_in(self, datapath: Any, batch: _Batch) -> None:
        if self._awaited([batch]):
            datapath.close()  # it tries again, and gets all of it again
            return
        self._ready.add(batch.switch)
        self.on_ready()

    def leaves(self, datapath: Any) -> None:
        """A switch is gone, and with it all that it was yet to confirm."""
        switch = self._named.get(datapath.id, "")
        if self._datapaths.get(switch) is not datapath:
            return
        del self._datapaths[switch]
        self._ready.discard(switch)
        for batch in list(self._batches.values()):
            if batch.switch == switch:
                batch.end(f"{switch}: disconnected")

    def confirms(self, datapath: Any, xid: int) -> None:
        """All before this barrier is done."""
        if batch := self._batches.get((self._named.get(datapath.id, ""), xid)):
            batch.end()

    def refuses(self, datapath: Any, error: Any) -> None:
        """A message was refused. The barrier behind it is still passed, so its batch learns of it in time."""
        switch = self._named.get(datapath.id, "")
        refused = int.from_bytes(bytes(error.data[4:8]), "big")
        for batch in self._batches.values():
            if batch.switch == switch and refused in batch.said:
                why = of.ofp_error_code_to_str(error.type, error.code)
                batch.faults.append(f"{switch} refuses {batch.said[refused]}: {why}")

    def asks(self, datapath: Any, message: Any) -> None:
        """A server asks for an address: answer it by the port it asked from. Or a probe of light has come through."""
        switch, frame = self._named.get(datapath.id, ""), bytes(message.data)
        if self.probe.hears(switch, message.match["in_port"], frame):
            return
        reply = arp.answer(self._known, switch, frame)
        if reply is not None:
            out = [parser.OFPActionOutput(message.match["in_port"])]
            datapath.send_msg(parser.OFPPacketOut(datapath, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, reply))

    def sees(self, datapath: Any, ports: Iterable[Any]) -> None:
        """How ports are."""
        switch = self._named.get(datapath.id, "")
        plugged = self._plugged.get(switch, {})
        for port in ports:
            if port.port_no in plugged:
                up = not (port.state & of.OFPPS_LINK_DOWN or port.config & of.OFPPC_PORT_DOWN)
                self.on_port(switch, plugged[port.port_no], up)

    def tells(self, datapath: Any, message: Any) -> None:
        """Flow statistics, or a part of them."""
        self._stats.setdefault((self._named.get(datapath.id, ""), message.xid), []).extend(message.body)

    def _emit(self, frames: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        """Send frames out of ports, by switch. ControlError names the switches that are absent."""
        if absent := sorted(switch for switch in frames if switch not in self._datapaths):
            raise ControlError("; ".join(f"{switch}: not connected" for switch in absent))
        for switch, listed in frames.items():
            self._datapaths[switch].send(b"".join(self._packet_out(port, frame) for port, frame in listed))

    # --- messages ----------------------------------------------------------------------------------------------------

    def _send(self, switch: str, datapath: Any, told: Iterable[tuple[bytes, str]]) -> _Batch:
        """Send these and a barrier in one piece: one system call, and nothing of another change in between.

        Each message comes with what it is about; here it gets its transaction number.
        """
        said, wire = dict[int, str](), bytearray()
        for message, what in (*told, (messages.BARRIER, "barrier")):
            datapath.xid = (datapath.xid + 1) & of.MAX_XID
            said[datapath.xid] = what
            wire += messages.numbered(message, datapath.xid)
        batch = _Batch(switch, datapath.xid, said)
        self._batches[switch, batch.barrier] = batch
        datapath.send(bytes(wire))
        return batch

    def _packet_out(self, port: int, frame: bytes) -> bytes:
        """A packet-out: kept for each port and length, since it differs in its frame alone, which is its end."""
        key = port, len(frame)
        if key not in self._packet_outs:
            self._packet_outs[key] = messages.packet_out(port, bytes(len(frame)))
        return self._packet_outs[key][: -len(frame)] + frame

    def _mods(self, switch: str, change: RuleChange) -> list[tuple[bytes, str]]:
        """Deletions strictly before additions: a table that is full has room then."""
        gone = sorted((rule for rule in change.delete if rule.switch == switch), key=str)
        come = sorted((rule for rule in change.add if rule.switch == switch), key=str)
        return [(self._mod(rule, add=False), str(rule)) for rule in gone] + [
            (self._mod(rule, add=True), str(rule)) for rule in come
        ]

    def _mod(self, rule: Rule, *, add: bool) -> bytes:
        """A rule's flow-mod. Kept, since Ryu takes a quarter of a millisecond to serialise one and light comes back to the same NICs."""
        known = self._serialised.get((rule, add))
        if known is None:
            made = entry(self.fabric, rule)
            known = messages.addition(made, self.cookie) if add else messages.deletion(made)
            self._serialised[rule, add] = known
        return known
