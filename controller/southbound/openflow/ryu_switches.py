"""The packet switches of one controller over OpenFlow 1.3, by Ryu: the one module that knows Ryu.

A switch that connects is given every rule it should have, whatever it had: the controller says what is, and never asks. Each controller process
marks its entries with a cookie of its own, by which what an earlier one left is found and removed, after the new entries are in place.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final

from controller.southbound.openflow import arp, shim  # noqa: F401 - the shim has to come before Ryu
from controller.southbound.openflow.entries import ARP_PRIORITY, Entry, entry
from controller.southbound.openflow.green import listen

# isort: split
import eventlet
from ryu import cfg
from ryu.base.app_manager import AppManager, RyuApp
from ryu.controller import ofp_event
from ryu.controller.controller import datapath_connection_factory
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.controller.ofp_handler import OFPHandler
from ryu.ofproto import ofproto_v1_3 as of
from ryu.ofproto import ofproto_v1_3_parser as parser
from ryu.ofproto.ofproto_protocol import ProtocolDesc

from moefabric.errors import ControlError
from moefabric.rules import Rule, RuleChange
from moefabric.topology import HOST_PORT, Fabric

logging.getLogger("ryu").setLevel(logging.WARNING)  # at INFO it names its own parts

_COOKIE_BITS: Final = 64
_ETH_ARP, _ETH_IP = 0x0806, 0x0800


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


class _Wire(RyuApp):
    """What Ryu tells, handed on."""

    OFP_VERSIONS = [of.OFP_VERSION]  # noqa: RUF012 - Ryu looks for a list

    def __init__(self, switches: "RyuSwitches") -> None:
        super().__init__()
        self._switches = switches

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def state_changes(self, ev: Any) -> None:
        if ev.state == MAIN_DISPATCHER:
            self._switches.enters(ev.datapath)
        else:
            self._switches.leaves(ev.datapath)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def barrier_is_passed(self, ev: Any) -> None:
        self._switches.confirms(ev.msg.datapath, ev.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def error_comes(self, ev: Any) -> None:
        self._switches.refuses(ev.msg.datapath, ev.msg)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_comes(self, ev: Any) -> None:
        self._switches.asks(ev.msg.datapath, ev.msg)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def counts_come(self, ev: Any) -> None:
        self._switches.tells(ev.msg.datapath, ev.msg)


class RyuSwitches:
    """Some switches of a fabric, the rules they should have, and Ryu between the two."""

    def __init__(self, fabric: Fabric, switches: Sequence[str], base: Iterable[Rule], deadline_s: float = 5.0) -> None:
        """`switches` are the controller's own, `base` the rules they have without light, `deadline_s` how long a change may take."""
        self.fabric, self.switches, self.deadline_s = fabric, tuple(switches), deadline_s
        self.cookie = SystemRandom().getrandbits(_COOKIE_BITS) & ~1  # all ones is OpenFlow's own
        self._named = {fabric.dpid(switch): switch for switch in switches}
        self._rules = {rule.match: rule for rule in base}
        self._known = arp.knowledge(fabric)
        self._datapaths: dict[str, Any] = {}
        self._ready: set[str] = set()
        self._batches: dict[tuple[str, int], _Batch] = {}
        self._serialised: dict[tuple[Rule, int], bytes] = {}
        self._stats: dict[tuple[str, int], list[Any]] = {}
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever a switch has confirmed all its rules."""

    def listen(self, address: tuple[str, int]) -> None:
        """Take the switches' connections from now on. ControlError if the address is taken."""
        cfg.CONF(args=[], project="ryu", default_config_files=[])
        cfg.CONF.set_override("echo_request_interval", 5.0)
        cfg.CONF.set_override("maximum_unreplied_echo_requests", 3)
        manager = AppManager.get_instance()
        apps = [manager.instantiate(_Wire, self), manager.instantiate(OFPHandler)]
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
        asked = _serialised(
            parser.OFPFlowStatsRequest(_ANY, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, parser.OFPMatch())
        )
        batches = [self._send(switch, datapath, [(asked, "flow statistics")]) for switch, datapath in self._datapaths.items()]
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
        by_match = {entry(self.fabric, rule).match: rule for rule in self._rules.values() if rule.switch == batch.switch}
        found = [(by_match.get(_seen(flow)), flow) for flow in flows]
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
        mods = [(self._mod(rule, of.OFPFC_ADD), str(rule)) for rule in self._rules.values() if rule.switch == switch]
        if switch in self.fabric.index:
            mods.append((self._arp(), f"{switch}: ARP to the controller"))
        mods += [(_BARRIER, "barrier"), *self._delete_others()]
        eventlet.spawn(self._settle_in, datapath, self._send(switch, datapath, mods))

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
        """A server asks for an address: answer it by the port it asked from."""
        reply = arp.answer(self._known, self._named.get(datapath.id, ""), bytes(message.data))
        if reply is not None:
            out = [parser.OFPActionOutput(message.match["in_port"])]
            datapath.send_msg(parser.OFPPacketOut(datapath, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, out, reply))

    def tells(self, datapath: Any, message: Any) -> None:
        """Flow statistics, or a part of them."""
        self._stats.setdefault((self._named.get(datapath.id, ""), message.xid), []).extend(message.body)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _send(self, switch: str, datapath: Any, messages: Iterable[tuple[bytes, str]]) -> _Batch:
        """Send these and a barrier in one piece: one system call, and nothing of another change in between.

        Messages come as Ryu serialised them, with what they are about; here they get their transaction numbers.
        """
        said, wire = dict[int, str](), bytearray()
        for message, what in (*messages, (_BARRIER, "barrier")):
            datapath.xid = (datapath.xid + 1) & of.MAX_XID
            said[datapath.xid] = what
            wire += message[:4] + datapath.xid.to_bytes(4, "big") + message[8:]
        batch = _Batch(switch, datapath.xid, said)
        self._batches[switch, batch.barrier] = batch
        datapath.send(bytes(wire))
        return batch

    def _mods(self, switch: str, change: RuleChange) -> list[tuple[bytes, str]]:
        """Deletions strictly before additions: a table that is full has room then."""
        return [
            (self._mod(rule, command), str(rule))
            for command, rules in ((of.OFPFC_DELETE_STRICT, change.delete), (of.OFPFC_ADD, change.add))
            for rule in sorted((rule for rule in rules if rule.switch == switch), key=str)
        ]

    def _mod(self, rule: Rule, command: int) -> bytes:
        """A rule's flow-mod. Kept, since Ryu takes a quarter of a millisecond to serialise one and light comes back to the same NICs."""
        known = self._serialised.get((rule, command))
        if known is None:
            made = entry(self.fabric, rule)
            known = self._flow_mod(command, made.priority, _match(made), made.port)
            self._serialised[rule, command] = known
        return known

    def _flow_mod(self, command: int, priority: int, match: Any, port: int) -> bytes:
        actions = [parser.OFPActionOutput(port, of.OFPCML_NO_BUFFER)]
        return _serialised(
            parser.OFPFlowMod(
                _ANY,
                cookie=self.cookie,
                command=command,
                priority=priority,
                out_port=of.OFPP_ANY,
                out_group=of.OFPG_ANY,
                match=match,
                instructions=[parser.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, actions)] if command == of.OFPFC_ADD else [],
            )
        )

    def _arp(self) -> bytes:
        """ARP of the server, and of nobody else, comes to the controller."""
        return self._flow_mod(of.OFPFC_ADD, ARP_PRIORITY, parser.OFPMatch(in_port=HOST_PORT, eth_type=_ETH_ARP), of.OFPP_CONTROLLER)

    def _delete_others(self) -> list[tuple[bytes, str]]:
        """Delete every entry whose cookie differs from ours in one bit or more: OpenFlow can't say `not equal`, but 64 of these do."""
        return [
            (
                _serialised(
                    parser.OFPFlowMod(
                        _ANY,
                        cookie=~self.cookie & (1 << bit),
                        cookie_mask=1 << bit,
                        table_id=of.OFPTT_ALL,
                        command=of.OFPFC_DELETE,
                        out_port=of.OFPP_ANY,
                        out_group=of.OFPG_ANY,
                        match=parser.OFPMatch(),
                    )
                ),
                "removal of entries that are not ours",
            )
            for bit in range(_COOKIE_BITS)
        ]


class _Anyone(ProtocolDesc):
    """Whom a message is serialised for: any switch that speaks OpenFlow 1.3."""


_ANY: Final = _Anyone(of.OFP_VERSION)


def _serialised(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


_BARRIER: Final = _serialised(parser.OFPBarrierRequest(_ANY))


def _match(made: Entry) -> Any:
    mask = (0xFFFFFFFF << (32 - made.length)) & 0xFFFFFFFF
    marked = {} if made.dscp is None else {"ip_dscp": made.dscp}
    return parser.OFPMatch(eth_type=_ETH_IP, ipv4_dst=(made.network, mask), **marked)


def _seen(flow: Any) -> tuple[int, int, int, int | None]:
    """The entry that a flow's statistics are of, as `Entry.match` has it."""
    fields = dict(flow.match.items())
    to = fields.get("ipv4_dst", ("", "0.0.0.0"))  # noqa: S104 - a mask
    address, mask = to if isinstance(to, tuple) else (to, "255.255.255.255")
    return flow.priority, _number(address or mask), _number(mask).bit_count(), fields.get("ip_dscp")


def _number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")
