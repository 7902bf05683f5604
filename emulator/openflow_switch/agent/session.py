"""Switch's side of a connection to a controller (OpenFlow 1.3.5, sections 6 and 7).

A session neither waits nor sends. Its caller passes received bytes and the time, and takes the
output.

All changes of tables and groups between two barriers become one change of the datapath. The session
batches them, and makes them together when the controller sends a barrier or a request that depends
on them, or has sent no change for `BATCH_QUIET_NS`. A packet meets all changes of a batch or none.
Therefore a divert or an admit (some flow-mods and a barrier) needs no bundle, an extension of
OpenFlow 1.3 that Ryu lacks.
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow import messages
from moefabric.core.openflow.actions import TO_TABLE, ToGroup
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, refuse_if
from moefabric.core.openflow.match import FlowError
from moefabric.core.openflow.messages import Message
from moefabric.emulator.openflow_switch.agent.connection_settings import (
    AsyncKind,
    ConnectionSettings,
)
from moefabric.emulator.openflow_switch.agent.multipart import (
    flow_removed,
    multipart_bodies,
    port_description,
)
from moefabric.emulator.openflow_switch.agent.switch import Mod, OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port, PuntedPacket
from moefabric.emulator.openflow_switch.tables.flow_tables import RemovedEntry

log = logging.getLogger(__name__)

NEVER: Final = 1 << 63
BATCH_QUIET_NS: Final = 20_000_000
"""Changes without a barrier are made after this time without another change."""
BATCH_MAX_NS: Final = 500_000_000
"""Longest time that changes wait for other changes or for the rest of a message."""
BATCH_MAX_MESSAGES: Final = 16384
ECHO_INTERVAL_NS: Final = 5_000_000_000
"""Silence after which a controller gets an echo request; after twice this time it is lost."""
MAX_UNSENT_BYTES: Final = 1 << 20
"""Limit of unread output beyond which packet-ins are lost; replies never are."""
_MODIFIED: Final = 2  # OFPPR_MODIFY
_NO_COOKIE: Final = (1 << 64) - 1
_IGNORED: Final = ofp.MessageType.HELLO, ofp.MessageType.ERROR, ofp.MessageType.ECHO_REPLY
_DECODERS: Final[Mapping[int, Callable[[Message], Mod]]] = {
    ofp.MessageType.FLOW_MOD: messages.decode_flow_mod,
    ofp.MessageType.GROUP_MOD: messages.decode_group_mod,
}


def _unknown(message: Message) -> None:
    if message.version != ofp.VERSION:
        raise OpenFlowError(ErrorCode.BAD_VERSION, f"version {message.version}")
    raise OpenFlowError(ErrorCode.BAD_TYPE, f"type {message.type}")


class ControllerSession:
    """A session of a controller, which listens to the switch from its hello until `close`."""

    def __init__(self, switch: OpenFlowSwitch, now_ns: int, *, passive: bool = False) -> None:
        """Start a session.

        A passive session gets packets and events only after it has asked for them (set-async).
        """
        self.switch, self.is_over = switch, False
        self._passive = passive
        self.settings = ConnectionSettings(switch, passive=passive)
        self._partial, self._output = b"", bytearray(messages.encode_hello(1))
        self._pending = deque[Message]()
        self._greeted, self._echo_pending, self._output_blocked = False, False, False
        self._now_ns = self._heard_ns = now_ns
        self._batch = list[tuple[Message, Mod]]()
        self._batch_first_ns = self._batch_last_ns = 0
        self._xids = count(2)
        self._handlers: Mapping[int, Callable[[Message], bytes | None]] = {
            **self.settings.replies,
            **dict.fromkeys(_IGNORED, lambda _message: None),
            ofp.MessageType.PACKET_OUT: self._packet_out,
            **dict.fromkeys(_DECODERS, self._mod),
            ofp.MessageType.MULTIPART_REQUEST: self._multipart,
            ofp.MessageType.BARRIER_REQUEST: self._barrier,
        }

    def close(self) -> None:
        """Make the batched changes and end the session; may be repeated."""
        try:
            self.flush(self._now_ns)
        except FabricError as fault:
            log.error("changes lost", extra={"why": str(fault)})  # noqa: TRY400 - fault suffices
        self.is_over = True
        if self in self.switch.listeners:
            self.switch.listeners.remove(self)

    # --- bytes ------------------------------------------------------------------------------------

    def receive(self, received: bytes, now_ns: int) -> None:
        """Process bytes from the controller, which may end within a message."""
        self._now_ns = self._heard_ns = now_ns
        self._echo_pending = False
        try:
            received_messages, self._partial = messages.split_messages(self._partial + received)
        except OpenFlowError as error:
            log.warning("not OpenFlow", extra={"why": str(error)})
            self.is_over = True
            return
        self._pending.extend(received_messages)
        self._process_pending()

    def _process_pending(self) -> None:
        """Process messages until the unsent output exceeds its limit."""
        pending, output = self._pending, self._output
        while pending and not self.is_over and len(output) < MAX_UNSENT_BYTES:
            self._process(pending.popleft())

    @property
    def wants_input(self) -> bool:
        """True if more input may be read; False while the controller leaves output unread."""
        return not self._pending and self.unsent_bytes < MAX_UNSENT_BYTES

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be taken."""
        return len(self._output)

    def transmit(self, send: Callable[[bytearray], int], now_ns: int) -> None:
        """Pass the output to `send`, which returns how many bytes it has sent.

        A controller that reads output that was blocked counts as alive even if it is silent.
        """
        if not self._output:
            return
        sent = send(self._output)
        del self._output[:sent]
        if sent and self._output_blocked:
            self._heard_ns, self._echo_pending = now_ns, False
        self._output_blocked = bool(self._output)
        if self._pending and sent:
            self._now_ns = now_ns
            self._process_pending()

    # --- time -------------------------------------------------------------------------------------

    @property
    def due_ns(self) -> int:
        """When `tick` must be called if nothing is received until then."""
        if self._batch:
            is_partial = self._partial or self._pending
            wait_ns = BATCH_MAX_NS if is_partial else BATCH_QUIET_NS
            return min(self._batch_last_ns + wait_ns, self._batch_first_ns + BATCH_MAX_NS)
        if self._passive:
            return NEVER  # a Unix socket reports the loss of its peer
        return self._heard_ns + ECHO_INTERVAL_NS * (2 if self._echo_pending else 1)

    def tick(self, now_ns: int) -> None:
        """Run due timers: batched changes and echo requests."""
        if now_ns < self.due_ns:
            return
        self._now_ns = now_ns
        if self._batch:
            self.flush(self._now_ns)
        elif self._echo_pending or not self._greeted:
            datapath = f"{self.switch.datapath_id:016x}"
            log.warning("controller is silent", extra={"datapath": datapath})
            self.is_over = True
        else:
            self._echo_pending = True
            xid = next(self._xids) & ofp.MAX_XID
            self._output += messages.encode_message(ofp.MessageType.ECHO_REQUEST, xid)

    # --- requests ---------------------------------------------------------------------------------

    def _process(self, message: Message) -> None:
        """Process a message; reply with an error if that fails."""
        if not self._greeted:
            self._greet(message)
            return
        try:
            is_known = message.version == ofp.VERSION
            handler = self._handlers.get(message.type, _unknown) if is_known else _unknown
            if reply := handler(message):
                self._output += reply
        except OpenFlowError as error:
            self._refuse(message, error)
        except struct.error as error:
            self._refuse(message, OpenFlowError(ErrorCode.BAD_LEN, str(error)))
        except FlowError as error:  # a combination of fields that only the datapath refuses
            self._refuse(message, OpenFlowError(ErrorCode.MATCH_BAD_VALUE, str(error)))
        except FabricError as error:  # the kernel doesn't answer
            log.error("request failed", extra={"why": str(error)})  # noqa: TRY400 - as above
            self._refuse(message, OpenFlowError(ErrorCode.REQUEST_NOT_PERMITTED, str(error)))

    def _refuse(self, message: Message, error: OpenFlowError) -> None:
        datapath = f"{self.switch.datapath_id:016x}"
        log.info("refused", extra={"datapath": datapath, "why": str(error)})
        self._output += messages.encode_error(error.code, message)

    def _greet(self, message: Message) -> None:
        """Process the first message, a hello; end the session without a common version (6.3.1)."""
        with suppress(OpenFlowError):
            if message.type == ofp.MessageType.HELLO and messages.supports_version(message):
                self._greeted = True
                self.switch.listeners.append(self)
                return
        why = ErrorCode.HELLO_INCOMPATIBLE.wire + b"this switch speaks OpenFlow 1.3 alone"
        self._output += messages.encode_message(ofp.MessageType.ERROR, message.xid, why)
        self.is_over = True

    def _barrier(self, message: Message) -> bytes:
        message.require_empty_body()
        self.flush(self._now_ns)
        return messages.encode_message(ofp.MessageType.BARRIER_REPLY, message.xid)

    def _mod(self, message: Message) -> None:
        """Add a change to the batch."""
        self.settings.check_write_access()
        mod = _DECODERS[message.type](message)
        if not self._batch:
            self._batch_first_ns = self._now_ns
        self._batch_last_ns = self._now_ns
        self._batch.append((message, mod))
        if len(self._batch) >= BATCH_MAX_MESSAGES:
            self.flush(self._now_ns)

    def flush(self, now_ns: int) -> None:
        """Make the batched changes; the datapath has them when this method returns."""
        batch, self._batch = self._batch, []
        for place, error in self.switch.change([mod for _, mod in batch], now_ns):
            self._refuse(batch[place][0], error)

    def _packet_out(self, message: Message) -> None:
        self.settings.check_write_access()
        out = messages.decode_packet_out(message)
        if any(isinstance(action, ToGroup) or action == TO_TABLE for action in out.actions):
            self.flush(self._now_ns)
        self.switch.send(out)

    def _multipart(self, message: Message) -> bytes:
        kind, flags = message.fields(messages.MULTIPART)
        detail = "a request of several parts"
        refuse_if(flags & messages.MORE, ErrorCode.MULTIPART_BUFFER_OVERFLOW, detail)
        for listener in self.switch.listeners:
            listener.flush(self._now_ns)
        body = message.tail(messages.MULTIPART)
        bodies = multipart_bodies(self.switch, kind, body, self._now_ns)
        return messages.encode_multipart_replies(kind, message.xid, bodies)

    # --- asynchronous messages (7.4) --------------------------------------------------------------

    def send_packet_ins(self, packets: Iterable[PuntedPacket]) -> None:
        """Send packets to the controller; they are lost while it leaves too much unread."""
        for packet in packets:
            entry = self.switch.last_entry(packet.flow)
            is_miss = entry is not None and entry.is_table_miss
            reason = ofp.PacketInReason.NO_MATCH if is_miss else ofp.PacketInReason.ACTION
            has_room = self.unsent_bytes <= MAX_UNSENT_BYTES
            if has_room and self.settings.wants(AsyncKind.PACKET_IN, reason):
                table, cookie = (entry.table, entry.cookie) if entry else (0, _NO_COOKIE)
                self._output += messages.encode_packet_in(
                    reason, table, cookie, packet.in_port, packet.frame, packet.length
                )

    def send_flows_removed(self, removals: Iterable[RemovedEntry], now_ns: int) -> None:
        """Report the removed entries that have OFPFF_SEND_FLOW_REM."""
        for removal in removals:
            if self.settings.wants(AsyncKind.FLOW_REMOVED, removal.reason):
                body = flow_removed(removal, now_ns)
                self._output += messages.encode_message(ofp.MessageType.FLOW_REMOVED, 0, body)

    def send_port_status(self, port: Port) -> None:
        """Report the carrier of a port."""
        if self.settings.wants(AsyncKind.PORT_STATUS, _MODIFIED):
            body = struct.pack("!B7x", _MODIFIED) + port_description(self.switch, port)
            self._output += messages.encode_message(ofp.MessageType.PORT_STATUS, 0, body)
