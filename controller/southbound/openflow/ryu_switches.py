"""The packet switches of one controller over OpenFlow 1.3, by Ryu.

A switch that connects gets all its rules, whichever it had before. Each controller process marks
its entries with a cookie of its own. When the new entries are in place, entries with other cookies,
which earlier processes have left, are deleted.
"""

import logging
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from random import SystemRandom
from typing import Any, Final

from moefabric.controller.southbound.openflow import (
    framework,
    green,
    light_probe,
    messages,
    switch_connection,
)
from moefabric.controller.southbound.openflow.flow_entries import RuleCounter, flow_entry
from moefabric.controller.southbound.openflow.rule_messages import Request, RuleMessages
from moefabric.core.errors import ControlError, UnconfirmedError
from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.constants import MessageType
from moefabric.core.openflow.messages import FlowStats, Message, decode_flow_stats, decode_packet_in
from moefabric.core.rules import Rule, RuleChange
from moefabric.core.topology import Fabric

ofp_event = framework.module("controller.ofp_event")
handler = framework.module("controller.handler")
app_manager = framework.module("base.app_manager")
Application: Any = app_manager.RyuApp if framework.NAME == "ryu" else app_manager.OSKenApp
_LOOPBACK: Final = "127.0.0.1"
IN_USE, DEAD = switch_connection.IN_USE, switch_connection.DEAD

logging.getLogger(framework.NAME).setLevel(logging.WARNING)  # its INFO messages name its own parts


@dataclass
class _Batch:
    """Messages sent to a switch together, and the barrier that confirms them.

    Attributes:
        barrier: Transaction number of the barrier.
        subjects: The rule of each message, or its description, by transaction number.
        ended: Set when the barrier is confirmed or the switch disconnects.
        counts: Statistics of entries that the switch has sent in reply.
    """

    switch: str
    barrier: int
    subjects: Mapping[int, Rule | str]
    ended: green.GreenEvent = field(default_factory=green.GreenEvent)
    errors: list[str] = field(default_factory=list)
    counts: list[FlowStats] = field(default_factory=list)


class RyuEventHandler(Application):
    """Hands Ryu's events to the controller of each switch; a process has one.

    Ryu calls it in a green thread of its own, and each controller is called in its own context.
    """

    OFP_VERSIONS = [ofp.VERSION]  # noqa: RUF012 - Ryu looks for a list

    @handler.set_ev_cls(ofp_event.EventOFPStateChange, [IN_USE, DEAD])
    def state_changed(self, event: Any) -> None:
        """Handle a switch that connects or disconnects."""
        owner = event.datapath.owner
        handle = owner.connected if event.state == IN_USE else owner.disconnected
        event.datapath.context.run(handle, event.datapath)

    @handler.set_ev_cls(ofp_event.EventOFPPortStatus, IN_USE)
    def port_changed(self, event: Any) -> None:
        """Handle a change of a port of a connected switch."""
        datapath = event.msg.datapath
        datapath.context.run(datapath.owner.port_changed, datapath, event.msg.desc)


@cache
def _start_framework() -> None:
    """Start the parts of Ryu that all controllers of this process use."""
    cfg = framework.module("cfg")
    cfg.CONF(args=[], project=framework.NAME, default_config_files=[])
    cfg.CONF.set_override("echo_request_interval", 5.0)
    cfg.CONF.set_override("maximum_unreplied_echo_requests", 3)
    manager = app_manager.AppManager.get_instance()
    ofp_handler = framework.module("controller.ofp_handler").OFPHandler
    for app in (manager.instantiate(RyuEventHandler), manager.instantiate(ofp_handler)):
        Application.start(app)  # OFPHandler.start would listen by itself and hide its errors


class RyuSwitches:
    """The switches of a controller, and the rules that they should have.

    Args:
        switches: Names of the controller's switches.
        base: The rules that the switches start with.
        deadline_s: How long a change may take.
        token: The fabric's token, which each switch must prove to know; None for switches that
            can't, such as Open vSwitch.

    Attributes:
        probe: Proves light by frames between these switches.
        on_port: Called with a switch, the peer at one of its ports and whether that has a link:
            when the switch connects, and at each change.
    """

    def __init__(
        self,
        fabric: Fabric,
        switches: Sequence[str],
        base: Iterable[Rule],
        deadline_s: float = 5.0,
        token: str | None = None,
    ) -> None:
        self._token = token
        self.fabric, self.switches, self.deadline_s = fabric, tuple(switches), deadline_s
        random_bits = SystemRandom().getrandbits(messages.COOKIE_BITS)
        self.cookie = random_bits & ~1  # all ones is reserved by OpenFlow
        self._by_dpid = {fabric.openflow.dpid(switch): switch for switch in switches}
        self._rules = {rule.match: rule for rule in base}
        self._peers = {
            switch: {number: name for name, number in fabric.openflow.ports(switch).items()}
            for switch in switches
        }
        self._datapaths: dict[str, Any] = {}
        self._ready: set[str] = set()
        self._batches: dict[tuple[str, int], _Batch] = {}
        self._messages = RuleMessages(fabric, self.cookie)
        self.probe = light_probe.OpenFlowProbe(
            fabric, self._send_frames, green.GreenEvent, catch_up=self._catch_up
        )
        self.on_port: Callable[[str, str, bool], None] = lambda _switch, _peer, _up: None

    def listen(
        self, address: tuple[str, int], hosts: Collection[str], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept the switches' connections from these addresses, and over loopback.

        With TLS, switches may have any address, as their certificates tell who they are.

        Raises:
            ControlError: If `address` is in use.
        """
        _start_framework()
        known = None if tls else {*hosts, _LOOPBACK}
        server = switch_connection.SwitchServer(self, self._token)
        green.serve_connections(address, "switches", server.serve, tls, known)

    @property
    def ready(self) -> tuple[str, ...]:
        """The switches that are connected and have confirmed all their rules."""
        return tuple(switch for switch in self.switches if switch in self._ready)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the switches should have, sorted."""
        return tuple(sorted(self._rules.values(), key=lambda rule: rule.match))

    # --- requests to switches --------------------------------------------------------------------

    def apply(self, change: RuleChange) -> None:
        """Change rules on all switches concerned at once; return when each has confirmed.

        Raises:
            UnconfirmedError: with the switches that are absent, silent or refuse a rule. They get
                the new rules when they connect again.
        """
        for rule in change.delete:
            self._rules.pop(rule.match, None)
        self._rules |= {rule.match: rule for rule in change.add}
        batches, errors = list[_Batch](), dict[str, list[str]]()
        for switch, flow_mods in self._messages.of_change(change).items():
            if datapath := self._datapaths.get(switch):
                requests = flow_mods
                if self.fabric.spreads_unmarked:
                    rules = self._rules.values()
                    requests = self._messages.with_groups(switch, flow_mods, change.add, rules)
                batches.append(self._send(switch, datapath, requests))
            else:
                errors[switch] = [f"{switch}: not connected"]
        errors |= self._wait(batches)
        if errors:
            raise UnconfirmedError("; ".join(chain.from_iterable(errors.values())), errors)

    def prepare(self, change: RuleChange) -> None:
        """Encode a change that `apply` will probably get next; no switch is concerned yet."""
        self._messages.of_change(change)

    def counters(self) -> dict[str, list[RuleCounter]]:
        """Return each rule's counters, by switch; raise ControlError if one doesn't answer."""
        request: list[Request] = [(messages.STATISTICS_REQUEST, "flow statistics")]
        batches = [
            self._send(switch, datapath, request) for switch, datapath in self._datapaths.items()
        ]
        if errors := self._wait(batches):
            raise ControlError("; ".join(chain.from_iterable(errors.values())))
        return {batch.switch: self._batch_counters(batch) for batch in batches}

    def _wait(self, batches: Iterable[_Batch]) -> dict[str, list[str]]:
        """Wait until all batches have ended or the deadline has passed; return errors by switch."""
        deadline_s, errors = time.monotonic() + self.deadline_s, dict[str, list[str]]()
        for batch in batches:
            confirmed = batch.ended.wait(max(0.0, deadline_s - time.monotonic()))
            self._batches.pop((batch.switch, batch.barrier), None)
            silent = f"{batch.switch}: no confirmation within {self.deadline_s:g} s"
            if faults := [*([] if confirmed else [silent]), *batch.errors]:
                errors[batch.switch] = faults
        return errors

    def _batch_counters(self, batch: _Batch) -> list[RuleCounter]:
        by_match = {
            flow_entry(self.fabric, rule).match: rule
            for rule in self._rules.values()
            if rule.switch == batch.switch
        }
        counts = ((by_match.get(messages.counted_match(entry)), entry) for entry in batch.counts)
        counters = [RuleCounter(rule, entry.packets, entry.bytes) for rule, entry in counts if rule]
        return sorted(counters, key=lambda counter: counter.rule.match)

    # --- Ryu's events ----------------------------------------------------------------------------

    def connected(self, datapath: Any) -> None:
        """Give a switch all its rules, then delete the entries of earlier controllers.

        A switch that has proved its identity replaces its earlier connection, which may have been
        lost unnoticed. Without proofs, the connected switch stays: a switch closes its connection
        before it opens another one, and echoes find a connection that is lost.
        """
        switch = self._by_dpid.get(datapath.id)
        if switch is None:
            datapath.refuse(f"no switch of this controller has the datapath id {datapath.id:016x}")
            return
        if self._token and datapath.proved_id != datapath.id:
            datapath.refuse(f"{switch}: the switch has proved another datapath id")
            return
        if earlier := self._datapaths.get(switch):
            if not self._token:
                datapath.refuse(f"{switch}: connected already")
                return
            earlier.refuse(f"{switch}: connects again")
            self.disconnected(earlier)
        self._datapaths[switch] = datapath
        self._messages.forget_groups(switch)
        batch = self._send(switch, datapath, self._initial_messages(switch))
        green.spawn(self._await_initial_rules, datapath, batch)
        self._report_ports(switch, datapath.ports.values())

    def _initial_messages(self, switch: str) -> Iterator[Request]:
        """Yield all entries of a switch, and the deletions of those of other controllers."""
        if self.fabric.spreads_unmarked:
            yield messages.group_deletion(), "deletion of all groups"
            yield from self._messages.missing_groups(switch, self._rules.values())
        for rule in self._rules.values():
            if rule.switch == switch:
                yield self._messages.of_rule(rule, add=True), rule
        if switch in self.fabric.server_index:
            yield messages.arp_to_controller(self.cookie), f"{switch}: ARP to the controller"
            to_probe = messages.probes_to_controller(self.cookie, light_probe.ETHERTYPE)
            yield to_probe, f"{switch}: probes of light to the controller"
        yield messages.BARRIER, "barrier"
        for message in messages.deletions_of_others(self.cookie):
            yield message, "deletion of entries of other controllers"

    def _await_initial_rules(self, datapath: Any, batch: _Batch) -> None:
        if self._wait([batch]):
            datapath.close()  # the switch connects again and gets all rules again
        else:
            self._ready.add(batch.switch)

    def _connected_switch(self, datapath: Any) -> str | None:
        """Return the switch whose present connection this is."""
        switch = self._by_dpid.get(datapath.id, "")
        return switch if self._datapaths.get(switch) is datapath else None

    def disconnected(self, datapath: Any) -> None:
        """Forget a switch and end all batches that it has not confirmed."""
        if (switch := self._connected_switch(datapath)) is None:
            return
        del self._datapaths[switch]
        self._ready.discard(switch)
        for batch in list(self._batches.values()):
            if batch.switch == switch:
                batch.errors.append(f"{switch}: disconnected")
                batch.ended.set()

    def message_received(self, datapath: Any, message: Message) -> None:
        """Handle a message that Ryu doesn't decode.

        Raises:
            OpenFlowError: If a length in it is wrong.
        """
        if (switch := self._connected_switch(datapath)) is None:
            return
        match message.type:
            case MessageType.BARRIER_REPLY:
                if batch := self._batches.get((switch, message.xid)):
                    batch.ended.set()
            case MessageType.PACKET_IN:
                self._packet_received(switch, datapath, *decode_packet_in(message))
            case MessageType.ERROR:
                failed, why = messages.error(message)
                for batch in self._batches_with(switch, failed):
                    batch.errors.append(f"{switch} refuses {batch.subjects[failed]}: {why}")
            case MessageType.MULTIPART_REPLY:  # statistics may come in parts
                for batch in self._batches_with(switch, message.xid):
                    batch.counts.extend(decode_flow_stats(message))

    def _batches_with(self, switch: str, xid: int) -> Iterator[_Batch]:
        """Yield the batch that waits for a switch's reply to a request, if one does."""
        for batch in self._batches.values():
            if batch.switch == switch and xid in batch.subjects:
                yield batch

    def port_changed(self, datapath: Any, port: Any) -> None:
        """Report the link of a port of a connected switch."""
        if switch := self._connected_switch(datapath):
            self._report_ports(switch, [port])

    def _packet_received(self, switch: str, datapath: Any, port: int, frame: bytes) -> None:
        """Hand a frame to the light probe, or answer an ARP request by the port it came from."""
        if self.probe.frame_received(switch, port, frame):
            return
        if reply := messages.arp_reply(self.fabric, switch, frame):
            datapath.send(messages.packet_out(port, reply))

    def _report_ports(self, switch: str, ports: Iterable[Any]) -> None:
        """Report the link of each port that has a peer."""
        peers = self._peers.get(switch, {})
        for port in ports:
            if port.port_no in peers:
                up = not (port.state & ofp.LINK_DOWN or port.config & ofp.PORT_DOWN)
                self.on_port(switch, peers[port.port_no], up)

    # --- messages --------------------------------------------------------------------------------

    def _send_frames(self, frames: Mapping[str, Sequence[tuple[int, bytes]]]) -> None:
        """Send frames out of ports, by switch; raise ControlError if a switch is absent."""
        if absent := sorted(switch for switch in frames if switch not in self._datapaths):
            raise ControlError("; ".join(f"{switch}: not connected" for switch in absent))
        for switch, by_port in frames.items():
            packet_outs = b"".join(messages.packet_out(port, frame) for port, frame in by_port)
            self._datapaths[switch].send(packet_outs)

    def _catch_up(self, switches: Collection[str]) -> None:
        """Return when switches have handled the frames and messages that have reached them.

        The first barriers show that frames have left, the second ones that they have been reported.

        Raises:
            ControlError: if a switch doesn't confirm.
        """
        for _ in range(2):
            present = [(s, self._datapaths[s]) for s in sorted(switches) if s in self._datapaths]
            if errors := self._wait([self._send(*switch, ()) for switch in present]):
                raise ControlError("; ".join(chain.from_iterable(errors.values())))

    def _send(self, switch: str, datapath: Any, requests: Iterable[Request]) -> _Batch:
        """Send messages and a barrier by one system call, so that no other change interleaves."""
        subjects, data, xid = dict[int, Rule | str](), bytearray(), datapath.xid
        for message, subject in (*requests, (messages.BARRIER, "barrier")):
            xid = (xid + 1) & ofp.MAX_XID
            subjects[xid] = subject
            data += messages.with_xid(message, xid)
        datapath.xid = xid
        batch = _Batch(switch, xid, subjects)
        self._batches[switch, xid] = batch
        datapath.send(bytes(data))
        return batch
