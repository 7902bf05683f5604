"""A switch's connection to its controller: Ryu's, with fast paths for reconfigurations.

Ryu decodes a message into objects and hands them and each output from one green thread to another.
A reconfiguration waits for dozens of packet-ins and barrier replies. These are passed on as bytes,
and output is written to the socket at once. Ryu handles the handshake, echoes and ports.

A connection ends at the first message that no switch sends, and if the handshake takes too long.
"""

import contextlib
import logging
import secrets
import socket
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moefabric.controller.southbound.openflow import frame_check, framework, green, messages
from moefabric.core import switch_proof
from moefabric.core.openflow.constants import MessageType, OpenFlowError
from moefabric.core.openflow.messages import Message, split_messages
from moefabric.runtime.connection_limit import ConnectionLimit
from moefabric.runtime.counted_warnings import CountedWarnings

if TYPE_CHECKING:
    from moefabric.controller.southbound.openflow.ryu_switches import RyuSwitches

app_manager = framework.module("base.app_manager")  # first, because Ryu imports in circles
ofp_event = framework.module("controller.ofp_event")
handler = framework.module("controller.handler")
Datapath: Any = framework.module("controller.controller").Datapath
ofproto_parser = framework.module("ofproto.ofproto_parser")

log = logging.getLogger(__name__)

IN_USE, DEAD = handler.MAIN_DISPATCHER, handler.DEAD_DISPATCHER  # states of a connection
HANDSHAKE_S: Final = 10.0
"""Time from a connection of a switch until its ports must be known."""
MOST_HANDSHAKES: Final = 256
"""Connections whose handshake may be unfinished at once; more than a region has switches."""
MOST_SWITCHES: Final = 4096
"""Connections of switches that are known; each switch has one."""
_READ_BYTES: Final = 1 << 16


class SwitchConnection(Datapath):
    """A connection of a switch.

    Attributes:
        owner: The controller of the switch.
        context: The context in which the controller handles its events.
        proved_id: The datapath id that the switch has proved; None before its proof.
    """

    def __init__(
        self,
        connection: socket.socket,
        address: tuple[str, int],
        owner: "RyuSwitches",
        token: str | None,
        warnings: CountedWarnings,
        on_use: Callable[["SwitchConnection"], object],
    ) -> None:
        """Begin the handshake.

        Args:
            token: The fabric's token, which the switch must prove to know; None for a switch that
                can't, such as Open vSwitch.
            warnings: Log of connections that are refused.
            on_use: Called once the switch is known.
        """
        self.owner, self.context = owner, copy_context()
        self._warnings, self._on_use = warnings, on_use
        super().__init__(connection, address)
        self._handle, self._sending = owner.message_received, green.lock()
        self._token = token
        self.proved_id: int | None = None
        self._challenge = secrets.token_bytes(switch_proof.CHALLENGE_BYTES)

    def refuse(self, reason: object) -> None:
        """End the connection, and log why."""
        self._warnings.warn("%s:%d: connection closed: %s", *self.address[:2], reason)
        self.close()

    def set_state(self, state: str) -> None:
        """Enter a state of the handshake."""
        super().set_state(state)
        if state == IN_USE:
            self._on_use(self)

    def close(self) -> None:
        """End the connection at once, also for the green thread that reads from it."""
        self.set_state(DEAD)
        with contextlib.suppress(OSError):  # the peer was faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def send(self, buf: bytes, close_socket: bool = False) -> None:  # noqa: FBT001, FBT002 - Ryu's
        """Write bytes to the socket, unless the connection has ended."""
        if self.state == DEAD or self.send_q is None:
            return
        try:
            with self._sending:
                self.socket.sendall(buf)
        except OSError as error:
            log.debug("sending to %s: %s", self.address, error)
            close_socket = True
        if close_socket:
            self._close_write()

    def _recv_loop(self) -> None:
        """Read messages until the connection ends."""
        with contextlib.closing(self.socket), green.after(HANDSHAKE_S, self._end_handshake):
            if self._token is not None:
                self.send(messages.challenge(self._challenge))
            try:
                self._read_messages()
            except OpenFlowError as error:
                self.refuse(error)

    def _end_handshake(self) -> None:
        if self.state not in {IN_USE, DEAD}:
            self.refuse(f"no handshake within {HANDSHAKE_S:g} s")

    def _read_messages(self) -> None:
        unread, since_pause = b"", 0
        while self.state != DEAD:
            try:
                received = green.receive(self.socket, _READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                received = b""
            if not received:
                return
            complete, unread = split_messages(unread + received)
            for message in complete:
                if self.state != DEAD:
                    self._process_message(message)
            since_pause += len(received)
            if since_pause >= _READ_BYTES:
                since_pause = 0
                green.sleep(0)  # a switch that sends without end must not stop the others

    def _process_message(self, message: Message) -> None:
        for_framework, kind = frame_check.check(message), message.type
        if for_framework is None and self.state == IN_USE:
            self._handle(self, message)
        elif kind == MessageType.FEATURES_REPLY and self._token and self.proved_id is None:
            self.refuse("the switch doesn't prove that it belongs to the fabric")
        elif for_framework is not None:
            self._process_by_framework(for_framework)
        elif kind == MessageType.EXPERIMENTER and self._token:
            self.proved_id = messages.proved_id(self._token, self._challenge, message)
        elif kind == MessageType.MULTIPART_REPLY:
            self.refuse("statistics that nobody has requested")
        elif kind == MessageType.ERROR:
            self.refuse(f"error during the handshake: {message.body.hex()}")

    def _process_by_framework(self, message: Message) -> None:
        """Decode a message and call its handlers, as Ryu's own loop does."""
        version, kind, xid, wire = message
        decoded = ofproto_parser.msg(self, version, kind, len(wire), xid, bytearray(wire))
        if not decoded:
            self.refuse(f"type {kind}, which {framework.NAME} can't decode")
            return
        event = ofp_event.ofp_msg_to_ev(decoded)
        self.ofp_brick.send_event_to_observers(event, self.state)
        for handle in self.ofp_brick.get_handlers(event):
            if self.state in handle.callers[type(event)].dispatchers:
                handle(event)


def _end_unfinished(connection: SwitchConnection) -> None:
    connection.refuse(f"{MOST_HANDSHAKES} handshakes are unfinished")


@dataclass
class SwitchServer:
    """Serves the switches that connect."""

    owner: "RyuSwitches"
    token: str | None = None

    def __post_init__(self) -> None:
        """Begin without connections."""
        self._limit = ConnectionLimit[SwitchConnection](
            _end_unfinished, MOST_HANDSHAKES, MOST_HANDSHAKES, MOST_SWITCHES
        )
        self._warnings = CountedWarnings(log)

    def serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        """Serve a switch that has connected, until it disconnects.

        Too many unfinished handshakes end the oldest of them, so that silent connections don't
        keep a switch out.
        """
        switch = SwitchConnection(
            connection, address, self.owner, self.token, self._warnings, self._limit.begin_request
        )
        self._limit.add(switch, address[0])
        try:
            with contextlib.closing(switch):
                switch.serve()
        finally:
            self._limit.remove(switch)
