"""The wire between Ryu and a controller's switches: what Ryu tells, handed on."""

from collections.abc import Iterable
from typing import Any, Protocol

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Ryu

# isort: split
from ryu.base.app_manager import RyuApp
from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.ofproto import ofproto_v1_3 as of


class Switches(Protocol):
    """Whom it is told: Ryu's datapaths and messages."""

    def enters(self, datapath: Any) -> None: ...
    def leaves(self, datapath: Any) -> None: ...
    def confirms(self, datapath: Any, xid: int) -> None: ...
    def refuses(self, datapath: Any, error: Any) -> None: ...
    def asks(self, datapath: Any, message: Any) -> None: ...
    def sees(self, datapath: Any, ports: Iterable[Any]) -> None: ...
    def tells(self, datapath: Any, message: Any) -> None: ...


class Wire(RyuApp):
    """What Ryu tells, handed on."""

    OFP_VERSIONS = [of.OFP_VERSION]  # noqa: RUF012 - Ryu looks for a list

    def __init__(self, switches: Switches) -> None:
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

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_changes(self, ev: Any) -> None:
        self._switches.sees(ev.msg.datapath, [ev.msg.desc])

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def counts_come(self, ev: Any) -> None:
        self._switches.tells(ev.msg.datapath, ev.msg)
