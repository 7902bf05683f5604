"""The OpenFlow agent: one process that serves many switches, each with a connection of its own to its controller.

One thread, one wait. A controller that is slow, silent or gone holds up nobody else; what its switches do goes on meanwhile (fail-secure, OpenFlow
1.3.5, 6.3.2), and they try to reach it again and again. Beside its controller a switch may have guests: tools that ask at its own door.
"""

import errno
import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from emulator.switch.openflow import NEVER, Conversation
from emulator.switch.openflow_connection import Connection
from emulator.switch.openflow_ports import Interfaces
from emulator.switch.openflow_post import (
    CONNECT_NS,
    FIRST_RETRY_NS,
    GUESTS,
    LAST_RETRY_NS,
    Address,
    Post,
    closed,
    dialled,
    door,
)
from emulator.switch.openflow_switch import Switch
from moefabric.errors import FabricError

log = logging.getLogger(__name__)


class HasFileno(Protocol):
    """What can be waited for."""

    def fileno(self) -> int: ...


class Agent:
    """Serves switches until told to stop."""

    def __init__(self, interfaces: Interfaces, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`interfaces` tells of carrier on all switches' ports."""
        self._interfaces, self._clock_ns = interfaces, clock_ns
        self._waiting, self._stopped = selectors.DefaultSelector(), False
        self._posts = dict[str, Post]()
        self._due = dict[str, int]()
        self._ports = dict[str, tuple[Post, int]]()
        self._doors = list[socket.socket]()
        self._waiting.register(interfaces, selectors.EVENT_READ, self._carrier)

    def add(self, name: str, switch: Switch, management: Path | None = None) -> None:
        """Serve a switch, without a controller as yet; at `management`, a Unix socket, tools may speak OpenFlow with it.

        FabricError where there can be no such socket; the switch isn't served then.
        """
        post = Post(name, switch)
        if management:
            listening = door(management)
            self._doors.append(listening)
            self._waiting.register(listening, selectors.EVENT_READ, lambda: self._welcome(post, listening))
        self._posts[name] = post
        for port in switch.ports.values():
            self._ports[port.name] = (post, port.number)
        self._waiting.register(switch.datapath, selectors.EVENT_READ, lambda: self._packets(post))
        self._due[name] = post.due_ns

    def connect(self, controllers: Mapping[str, Address]) -> None:
        """Have switches, by name, follow these controllers from now on. KeyError for a switch that isn't there."""
        for name in controllers:
            self._posts[name]  # all of them or none
        for name, controller in controllers.items():
            post = self._posts[name]
            post.controller, post.retry_ns = controller, FIRST_RETRY_NS
            self._part(post, again_in_ns=0)

    def connected(self) -> tuple[str, ...]:
        """The switches that are speaking with their controllers."""
        return tuple(name for name, post in self._posts.items() if post.line)

    def listen_to(self, told: HasFileno, heard: Callable[[], None]) -> None:
        """Call `heard` whenever there is something to read, between other work."""
        self._waiting.register(told, selectors.EVENT_READ, heard)

    def stop(self) -> None:
        """Have `serve` return when it has done what it is at."""
        self._stopped = True

    def serve(self, *stops: socket.socket) -> None:
        """Answer until `stop` is called, or one of `stops` has something to read or is closed at its other end."""
        for each in stops:
            self.listen_to(each, self.stop)
        while not self._stopped:
            self.turn(None)

    def turn(self, patience_s: float | None) -> None:
        """Wait once, at most so long, and do all that there is to do."""
        due = max(0, min(self._due.values(), default=NEVER) - self._clock_ns())
        wait_s = due / 1e9 if due < NEVER // 2 else None
        if patience_s is not None:
            wait_s = patience_s if wait_s is None else min(wait_s, patience_s)
        ready = self._waiting.select(wait_s)
        # What has come is heard before a silence is taken for one, however long the hearing takes.
        now_ns = self._clock_ns()
        for key, _ in ready:
            key.data()
        for name, due_ns in list(self._due.items()):
            if due_ns <= now_ns:
                self._tick(self._posts[name], now_ns)

    def close(self) -> None:
        """Hang up, and take the doors away. Datapaths go on as they are."""
        for post in self._posts.values():
            self._part(post, again_in_ns=NEVER)
            while post.guests:
                post.guests.pop().close()
        for each in self._doors:
            closed(each)
        self._doors.clear()
        self._waiting.close()

    # --- time ----------------------------------------------------------------------------------------------------------

    def _tick(self, post: Post, now_ns: int) -> None:
        """Do what time asks for, if it still does."""
        if post.expiry_ns <= now_ns:
            self._expire(post, now_ns)
        for each in post.connections:
            each.conversation.tick(now_ns)
        if post.line is None and post.controller and post.dial_ns <= now_ns:
            if post.dialling:
                self._fail(post, "no answer")
            else:
                self._dial(post, now_ns)
        self._settle(post)

    def _expire(self, post: Post, now_ns: int) -> None:
        post.expiry_ns = NEVER  # until the post is settled
        try:
            departed = post.switch.expire(now_ns)
        except FabricError as fault:
            log.error("time-outs wait", extra={"switch": post.name, "why": str(fault)})  # noqa: TRY400 - the reason says it all
            return
        for each in post.switch.listeners:
            each.tell_departures(departed, now_ns)

    # --- the controller ------------------------------------------------------------------------------------------------

    def _dial(self, post: Post, now_ns: int) -> None:
        assert post.controller is not None
        try:
            post.dialling = dialled(post.controller)
        except OSError as fault:
            self._fail(post, fault.strerror or str(fault))
            return
        post.dial_ns = now_ns + CONNECT_NS
        self._waiting.register(post.dialling, selectors.EVENT_WRITE, lambda: self._arrive(post))

    def _arrive(self, post: Post) -> None:
        """The controller has taken the call, or won't."""
        sock = post.dialling
        if sock is None:
            return
        if status := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(post, errno.errorcode.get(status, str(status)))
            return
        self._waiting.unregister(sock)
        conversation = Conversation(post.switch, self._clock_ns())
        post.dialling = None
        post.line = Connection(sock, conversation, self._waiting, lambda line: self._hear(post, line))
        self._settle(post)

    def _hear(self, post: Post, line: Connection) -> None:
        if why := line.hear(self._clock_ns()):
            self._end(post, line, why)
        elif line is post.line:
            post.retry_ns = FIRST_RETRY_NS
        self._settle(post)

    def _settle(self, post: Post) -> None:
        """Send what is to be sent, and wait for what there is to wait for."""
        now_ns = self._clock_ns()
        for line in post.connections:
            if why := line.settle(now_ns):
                self._end(post, line, why)
        post.await_time_outs(now_ns)
        self._due[post.name] = post.due_ns

    def _end(self, post: Post, line: Connection, why: str) -> None:
        if line is post.line:
            self._fail(post, why)
            return
        with suppress(ValueError):
            post.guests.remove(line)
        line.close()

    def _fail(self, post: Post, why: str) -> None:
        log.info("not connected", extra={"switch": post.name, "why": why})
        post.retry_ns, again_ns = min(2 * post.retry_ns, LAST_RETRY_NS), post.retry_ns
        self._part(post, again_in_ns=again_ns)

    def _part(self, post: Post, again_in_ns: int) -> None:
        if post.dialling:
            self._waiting.unregister(post.dialling)
            post.dialling.close()
        if post.line:
            post.line.close()
        post.dialling = post.line = None
        post.dial_ns = self._clock_ns() + again_in_ns if post.controller and again_in_ns < NEVER else NEVER
        self._due[post.name] = post.due_ns

    # --- guests --------------------------------------------------------------------------------------------------------

    def _welcome(self, post: Post, listening: socket.socket) -> None:
        """Somebody is at the door: they may do what a controller may, and are told nothing that they haven't asked for."""
        try:
            sock, _ = listening.accept()
        except OSError:  # they have gone again
            return
        if len(post.guests) >= GUESTS:
            sock.close()
            return
        sock.setblocking(False)
        conversation = Conversation(post.switch, self._clock_ns(), guest=True)
        post.guests.append(Connection(sock, conversation, self._waiting, lambda line: self._hear(post, line)))
        self._settle(post)

    # --- what switches tell --------------------------------------------------------------------------------------------

    def _packets(self, post: Post) -> None:
        """Packets for the controller; nobody's, where there is none."""
        arrivals = list(post.switch.arrivals())
        for each in post.switch.listeners:
            each.tell_arrivals(arrivals)
        self._settle(post)

    def _carrier(self) -> None:
        for name, up in self._interfaces.changed().items():
            post, number = self._ports.get(name, (None, 0))
            if post is None or (port := post.switch.port_changed(number, up=up)) is None:
                continue
            for each in post.switch.listeners:
                each.tell_port(port)
            self._settle(post)
