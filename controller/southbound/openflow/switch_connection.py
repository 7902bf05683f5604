"""A switch's connection to its controller: Ryu's, with short ways for what reconfigurations need.

Ryu decodes a message into objects and hands them and each output from one green thread to another.
A reconfiguration waits for dozens of packet-ins and barrier replies. These are passed on as bytes,
and output is written to the socket at once. Ryu handles all else: handshake, echoes, errors.
"""

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from moefabric.controller.southbound.openflow import framework, green, messages

app_manager = framework.module("base.app_manager")  # first, because Ryu imports in circles
ofp_event = framework.module("controller.ofp_event")
handler = framework.module("controller.handler")
Datapath: Any = framework.module("controller.controller").Datapath
ofproto_parser = framework.module("ofproto.ofproto_parser")

log = logging.getLogger(__name__)

IN_USE, DEAD = handler.MAIN_DISPATCHER, handler.DEAD_DISPATCHER  # states of a connection
_READ_BYTES: Final = 1 << 16

FastHandler = Callable[[Any, int, int, bytes], bool]
"""Is given a connection, and type, transaction number and bytes of a message; returns whether it
has handled the message, which Ryu then doesn't decode."""


class SwitchConnection(Datapath):
    """A connection of a switch."""

    def __init__(
        self, connection: socket.socket, address: tuple[str, int], handle: FastHandler
    ) -> None:
        """Begin the handshake; `handle` is called for messages after it."""
        super().__init__(connection, address)
        self._handle, self._sending = handle, green.lock()

    def send(self, buf: bytes, close_socket: bool = False) -> bool:  # noqa: FBT001, FBT002 - Ryu's
        """Write bytes to the socket; return False if the connection has ended."""
        if self.state == DEAD or self.send_q is None:
            return False
        try:
            with self._sending:
                self.socket.sendall(buf)
        except OSError as error:
            log.debug("sending to %s: %s", self.address, error)
            close_socket = True
        if close_socket:
            self._close_write()
        return not close_socket

    def _recv_loop(self) -> None:
        """Read messages until the connection ends."""
        with contextlib.closing(self.socket):
            unread = b""
            while self.state != DEAD:
                try:
                    received = self.socket.recv(_READ_BYTES)
                except TimeoutError:
                    continue
                except OSError:
                    return
                if not received:
                    return
                unread = self._process(unread + received)
                if len(received) == _READ_BYTES:
                    green.sleep(0)  # a switch that sends without end must not stop the others

    def _process(self, received: bytes) -> bytes:
        """Process the complete messages among the received bytes; return the rest."""
        at = 0
        while len(received) - at >= messages.HEADER.size:
            version, kind, length, xid = messages.HEADER.unpack_from(received, at)
            length = max(length, messages.HEADER.size)
            if len(received) - at < length:
                break
            message = received[at : at + length]
            at += length
            if self.state != IN_USE or not self._handle(self, kind, xid, message):
                self._process_by_ryu(version, kind, xid, message)
        return received[at:]

    def _process_by_ryu(self, version: int, kind: int, xid: int, wire: bytes) -> None:
        """Decode a message and call its handlers, as Ryu's own loop does."""
        message = ofproto_parser.msg(self, version, kind, len(wire), xid, bytearray(wire))
        if not message:
            return
        event = ofp_event.ofp_msg_to_ev(message)
        self.ofp_brick.send_event_to_observers(event, self.state)
        for handle in self.ofp_brick.get_handlers(event):
            if self.state in handle.callers[type(event)].dispatchers:
                handle(event)


def serve(connection: socket.socket, address: tuple[str, int], handle: FastHandler) -> None:
    """Serve a switch that has connected, until it disconnects."""
    with contextlib.closing(SwitchConnection(connection, address, handle)) as switch:
        switch.serve()
