"""Outgoing connections: each sends transfers to one peer by one path."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from moefabric.agents.engine import wire
from moefabric.agents.engine.payload import Payload, Position, transfer_seed
from moefabric.agents.engine.pieces import Pieces
from moefabric.agents.engine.requests import os_error_text
from moefabric.agents.engine.resources import DataConnection, Resources
from moefabric.agents.engine.sockets import (
    KEEPS_PACE,
    SO_MAX_PACING_RATE,
    Destination,
    kept_pace,
    pacing_option,
    sent_segments,
    total_retransmits,
)
from moefabric.agents.engine.transfers import Send
from moefabric.runtime.event_loop import BROKEN, IN, NOW, OUT

# Most bytes that a connection sends before others have their turn, so that flows start together.
TURN = 512 * 1024
# Small enough that bytes in flight stay in the CPU's cache. Enough for 100 Gb/s over 40 µs; longer
# paths need more.
SNDBUF = 512 * 1024

LEAST_HOLD_NS, LONGEST_HOLD_NS = 500_000, 200_000_000
HOLD_FRAME_NS = 20_000_000  # paces are whole bytes a second: longer holds have more frames
UNPACED_SEGMENTS = 10  # Linux paces none of a connection's first segments

# Bytes at the end of a transfer that are copied to the kernel frame by frame.
TAIL = 128 * 1024


def frame_end(position: int, length: int, segment: int) -> int:
    """Return the byte of a payload at which the next frame ends at the latest.

    A shaped link delivers a frame when its transmission begins, so a transfer would end earlier
    than on a wire by the duration of its last frame. The last frame therefore has one segment of
    payload at most. All others are as large as the kernel makes them: a full link serves
    connections frame by frame in turn, so that a connection with small frames would wait.

    The first frame has one segment, too. Linux charges only half of it to the pace, because the
    connection was idle before (`tcp_update_skb_after_send`): a paced transfer would end earlier by
    half the duration of its first frame.

    Args:
        position: Bytes of the payload that were sent.
        length: Bytes of the payload.
        segment: TCP's payload of a packet.
    """
    if not position:
        return min(length, max(1, segment - wire.HEADER.size))
    last = (wire.HEADER.size + length - 1) // segment * segment - wire.HEADER.size
    return last if position < last else length


def opening_flags(send: Send, segment: int) -> int:
    """Return the flags of send(2) for a transfer's header with the first payload."""
    if not send.opening or send.opening < frame_end(0, send.bytes, segment):
        return int(socket.MSG_MORE)  # the trailer, or the next piece of memory, continues the frame
    return int(socket.MSG_EOR) if send.opening < send.bytes else 0


class OutgoingConnection(DataConnection):
    """A connection to a peer. Its transfers leave one after another, each at its own rate.

    Attributes:
        state: `connecting`, `greeting`, `up` or `lost`.
        on_settled: Called when the connection is up, and when it is lost.
        prepared: The transfer whose pace the idle connection has; None if it has nobody's.
        keeps_pace: Whether the kernel takes a new pace into account with the next packet.
        idle_ns: When the connection that keeps its pace sent its last packet.
    """

    def __init__(self, resources: Resources, destination: Destination) -> None:
        super().__init__(resources)
        self.destination = destination
        self.on_settled: Callable[[OutgoingConnection], None] = lambda _: None
        self.state, self.why = "connecting", ""
        self.queue: deque[Send] = deque()
        self.unacknowledged: deque[Send] = deque()
        self.segment = 1
        self.retransmits = 0
        self.is_paced = False
        self.prepared: Send | None = None
        self.keeps_pace = destination.congestion.startswith(KEEPS_PACE)
        self.idle_ns = 0
        try:
            self.sock = destination.start_connecting(resources.network)
        except OSError as error:
            self.state, self.why = "lost", os_error_text(error)  # a lost connection has no socket
        else:
            self.loop.watch(self.sock.fileno(), IN | OUT, self.ready)

    def facts(self) -> dict[str, str]:
        """Return where the connection leads, its state, and why it is lost."""
        there = self.destination
        return {"peer": there.peer, "path": there.path, "state": self.state, "why": self.why}

    def transfer(self, mask: int) -> None:
        """Greet the peer, read acknowledgements and send queued transfers."""
        if self.state == "connecting" and mask & (OUT | BROKEN):
            self._greet()
        if mask & (IN | BROKEN) and self.state != "lost":
            self._read_answers()
        if mask & OUT and self.state == "up":
            try:
                self._push()
            except OSError:
                with suppress(OSError):  # a relay sends its reason before it closes
                    self._read_answers()
                if self.state != "lost":
                    raise

    def prepare(self, send: Send, start_ns: int) -> None:
        """Have a transfer of an idle connection ready: at its start, one call sends its bytes.

        Where the congestion control keeps paces, the kernel sends the first ones by itself.
        """
        is_idle = self.state == "up" and not self.queue and not self.unacknowledged
        if not is_idle or self.prepared is not None:
            return
        try:
            self._prepare(send)
        except OSError as error:
            self.lose(os_error_text(error))
            return
        self.prepared = send
        if self.keeps_pace and sent_segments(self.sock) >= UNPACED_SEGMENTS:
            earliest_ns = max((self.idle_ns + start_ns) // 2, start_ns - LONGEST_HOLD_NS)
            if earliest_ns <= NOW():
                self._hold(send, start_ns)
            else:
                self.loop.call_at(earliest_ns, partial(self._hold, send, start_ns))

    def _hold(self, send: Send, start_ns: int) -> None:
        """Give the kernel the first bytes of a prepared transfer, which it sends at the start.

        After some bytes, a paced connection sends nothing for as long as they take at its pace. A
        few bytes at a low pace therefore make it wait until the start. Linux charges half of that
        time if the connection was idle for as long (`tcp_update_skb_after_send`).
        """
        wait_ns = start_ns - NOW()
        if send is not self.prepared or wait_ns < LEAST_HOLD_NS:
            return
        frames = wire.IDLE.pack(0, 0, 0, 0, 0) * (1 + wait_ns // HOLD_FRAME_NS)
        try:
            self._set_pace(8e9 * len(frames) / (2 * wait_ns))
            self.sock.send(frames)
            self._set_pace(send.rate_bps)
            self.prepared, send.first_ns = None, start_ns
            self.queue.append(send)
            with suppress(BlockingIOError):
                self._send_next(send, self.segment)
        except OSError as error:
            self.lose(os_error_text(error))
            return
        self.watch()

    def _set_pace(self, rate_bps: float | None, *, ends: bool = False) -> None:
        pace = kept_pace(rate_bps, ends=ends) if self.keeps_pace else pacing_option(rate_bps)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pace)
        self.is_paced = rate_bps is not None

    def send(self, send: Send) -> None:
        """Queue a transfer; it starts at once if the connection is idle."""
        if self.state != "up":
            send.end(f"no connection to {self.destination}: {self.why or self.state}")
            return
        if send.first_ns is not None:
            return  # the kernel has it
        self.queue.append(send)
        if len(self.queue) == 1:
            self.ready(OUT)

    def _push(self) -> None:
        """Give the kernel about TURN bytes; raise OSError if the connection broke.

        A transfer that has not begun sends its first frame only: the agent begins all transfers of
        a collective before it fills their buffers.
        """
        has_begun = bool(self.queue) and self.queue[0].first_ns is not None
        most = TURN if has_begun else self.segment
        try:
            while self.queue and most > 0:
                most -= self._send_next(self.queue[0], most)
        except BlockingIOError:
            pass
        self.watch()

    def abandon(self, send: Send) -> None:
        """Give up a transfer at its deadline; close the connection if the transfer has begun."""
        if send is self.prepared:
            self.prepared = None
            self._reset_pace()
        elif send in self.queue and send.first_ns is None:
            self.queue.remove(send)
            self.watch()
        elif send in self.queue:
            self.lose(f"closed in mid-transfer at the deadline of collective {send.collective}")

    def lose(self, why: str) -> None:
        """Close the connection and end all its transfers."""
        if self.state == "lost":
            return
        self.state, self.why = "lost", why
        unfinished = [*self.unacknowledged, *self.queue]
        self.close(reset=bool(unfinished))  # or the kernel would send its buffer at the old pace
        self.queue.clear()
        self.unacknowledged.clear()
        for send in unfinished:
            progress = f"{send.moved} of {send.bytes} bytes were sent"
            send.end(f"connection to {self.destination}: {why}; {progress}")
        self.on_settled(self)

    def watch(self) -> None:
        """Wait for acknowledgements, and for room if transfers are queued."""
        self.loop.watch(self.sock.fileno(), IN | OUT if self.queue else IN, self.ready)

    def _greet(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        there = self.destination
        names = self.resources.name, there.peer, there.path
        secrets = there.secret, there.relay, there.relay_secret
        self.sock.sendall(wire.Greeting(*names, *secrets, there.reply_dscp).to_bytes())
        self.state = "greeting"
        self.watch()

    def _read_answers(self) -> None:
        for raw in self.read_answers():
            if self.state != "lost":
                self._handle_answer(raw)

    def _handle_answer(self, raw: bytes) -> None:
        if answer := wire.ACKNOWLEDGEMENT.unpack(raw):
            if self.state == "greeting":
                self._greeted(accepted=answer[2])
            else:
                self._acknowledge(*answer)
        elif grant := wire.GRANT.unpack(raw):
            number, message = grant
            if number in self.resources.runs:  # it may have ended
                self.resources.runs[number].granted(message)
        elif loss := wire.LOSS.unpack(raw):
            text = loss[0].rstrip(b"\0").decode(errors="replace")
            self.lose(f"{self.destination.relay} {text}")
        else:
            self.lose("the peer's answer is not an agent's")

    def _greeted(self, *, accepted: int) -> None:
        if accepted:
            self.state = "up"
            self.segment = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            self.on_settled(self)
        else:
            peer = self.destination.peer
            self.lose(f"the agent there is not {peer}, or has another secret or version")

    def _acknowledge(self, collective: int, sequence: int, verdict: int, resent: int) -> None:
        for send in self.unacknowledged:
            if (send.collective, send.sequence) == (collective, sequence):
                self.unacknowledged.remove(send)
                if send.ok is None:  # else it is a message, of which nobody asks for more
                    send.acknowledged_ns = NOW()
                    send.retransmits = total_retransmits(self.sock) - self.retransmits + resent
                    why = "" if verdict else f"{self.destination.peer} found it corrupt"
                    send.end(why, corrupt=not verdict)
                if self.keeps_pace:  # a delayed acknowledgement would end the idle time (`_hold`)
                    self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                    self.idle_ns = NOW()
                self._reset_pace()
                return

    def _reset_pace(self) -> None:
        """Remove the pace limit of an idle connection.

        Linux's own congestion controls keep the lower pace until something is acknowledged, so this
        sends an IDLE frame.
        """
        if self.state == "up" and self.is_paced and not self.queue and not self.unacknowledged:
            self._set_pace(None)
            if not self.keeps_pace:
                self.sock.send(wire.IDLE.pack(0, 0, 0, 0, 0))

    def _send_next(self, send: Send, most: int) -> int:
        """Give the kernel the next bytes of a transfer; return how many it took."""
        if send.first_ns is None:
            if send is not self.prepared:
                self._prepare(send)
            self.prepared = None
            send.first_ns = NOW()
        payload = send.payload
        assert payload is not None
        if send.frame:
            flags = 0 if send.in_trailer else opening_flags(send, self.segment)
            count = self.sock.send(send.frame, flags)
            send.frame = send.frame[count:]
            if send.opening and not send.in_trailer and not send.frame:
                payload.advance(send.opening)
                self.resources.counters["bytes_sent"] += send.opening
        elif payload.remaining:
            before = payload.position
            try:
                self._send_payload(payload, most)
            finally:
                count = payload.position - before
                self.resources.counters["bytes_sent"] += count
        else:
            count = 0
        if not send.frame and not payload.remaining:
            self._finish(send, payload)
        return count

    def _send_payload(self, payload: Position, most: int) -> None:
        """Give the kernel payload of one frame or, far from both ends, of several.

        The first and the last frame are small.
        """
        position = payload.position
        end = frame_end(position, payload.length, self.segment)
        most = min(most, end - position)
        if isinstance(payload, Payload) and position and payload.remaining > TAIL:
            self._send_chunks(payload, min(most, payload.remaining - TAIL))
            return
        part = payload.view(most)
        if isinstance(payload, Pieces) and len(part) < most:  # the next piece continues the frame
            flags = int(socket.MSG_MORE)
        else:
            flags = int(socket.MSG_EOR) if position + len(part) == end < payload.length else 0
        payload.advance(self.sock.send(part, flags))

    def _send_chunks(self, payload: Payload, most: int) -> None:
        """Give the kernel payload from the block's file.

        Raises:
            BlockingIOError: as soon as the kernel takes no more.
        """
        out, block, end = self.sock.fileno(), payload.pattern.fd, payload.position + most
        while payload.position < end:
            begin, size = payload.extent(end - payload.position)
            count = os.sendfile(out, block, begin, size)
            payload.advance(count)
            if count < size:
                raise BlockingIOError

    def _prepare(self, send: Send) -> None:
        """Set a transfer's pace, and make its first frame."""
        if send.rate_bps is not None or self.is_paced:
            self._set_pace(send.rate_bps)
        if not self.unacknowledged:
            self.retransmits = total_retransmits(self.sock)
        fields: tuple[int, ...] = (send.collective, send.sequence, send.bytes)
        payload = send.payload
        if payload is None or isinstance(payload, Payload):
            name, pattern = self.resources.name, self.resources.pattern
            seed = transfer_seed(name, send.peer, send.path, send.collective, send.sequence)
            fields = (*fields, seed, pattern.identity)
            payload = send.payload = Payload(pattern, seed, send.bytes)
        opening = payload.view(frame_end(0, payload.length, self.segment)) if send.bytes else b""
        send.frame, send.opening = payload.form.pack(*fields) + opening, len(opening)

    def _finish(self, send: Send, payload: Position) -> None:
        if not send.in_trailer:
            send.in_trailer = True
            trailer = wire.TRAILER.pack(send.bytes, send.sequence, payload.checksum)
            send.frame = bytes(wire.padding(send.bytes)) + trailer
        else:
            send.last_ns = max(NOW(), send.first_ns or 0)  # the kernel may hold all of it
            if self.keeps_pace and send.rate_bps is not None:
                self._set_pace(send.rate_bps, ends=True)
            self.unacknowledged.append(self.queue.popleft())
            if payload.form is wire.MESSAGE:
                send.end()  # its bytes are the kernel's; its receiver reports what goes wrong
