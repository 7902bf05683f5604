"""Programs: steps of the ranks of one server, each of which starts when others have ended.

A program is loaded once and runs many times. `prepare` fills the inputs, `start` begins all ranks
at an instant. From then on the steps start each other: by their dependencies within a rank, by
messages between servers, and by copies between the GPUs of this server, which take as long as its
NVSwitch would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from moefabric.agents.engine import wire
from moefabric.agents.engine.connections import Connections
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.memory import Content, add, allocate
from moefabric.agents.engine.pieces import Place, Sum
from moefabric.agents.engine.requests import Fields, RefusedError
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.transfers import Receive, Send, Transfer, TransferKey
from moefabric.runtime.event_loop import NOW, Timer

KINDS = ("send", "receive", "receive_add", "copy", "compute")


class Step:
    """A step of a rank on this server.

    Attributes:
        kind: One of `KINDS`.
        place: The bytes that it sends, or where bytes go.
        source: The bytes that a copy reads.
        message: Number of the message that it sends or receives.
        peer: Server of the rank at the other end; this one for a message over the NVSwitch.
        granted: Whether the message needs no grant: its place is free from the start, although its
            receive may wait for other steps.
        wall_ns: How long it computes, or how long its message takes on the NVSwitch.
        after: Positions, among all steps of this server, of the steps that it waits for.
    """

    def __init__(self, rank: int, fields: Fields, buffers: list[bytearray], first: int) -> None:
        self.rank, self.kind = rank, fields.text("kind")
        if self.kind not in KINDS:
            raise RefusedError(f"{fields.place}kind: {self.kind!r} is none of {', '.join(KINDS)}")
        self.place = self.source = memoryview(b"")
        if self.kind != "compute":
            self.place = _range(fields, "", buffers)
        if self.kind == "copy":
            self.source = _range(fields, "source_", buffers, len(self.place))
        self.message = fields.integer("message", 0, (1 << 32) - 1, 0)
        self.peer, self.path = fields.text("peer", ""), fields.text("path", "")
        if not self.peer and self.kind not in ("copy", "compute"):
            raise RefusedError(f"{fields.place}peer: a {self.kind} needs one")
        self.granted = bool(fields.values.get("granted"))
        self.rate_bps = fields.rate()
        self.element = fields.integer("element", 1, 8, 1)
        self.wall_ns = fields.integer("wall_ns", 0, 1 << 62, 0)
        self.after = [first + position for position in fields.integers("after", [])]

    def __str__(self) -> str:
        way = f" by {self.path}" if self.path else ""
        direction = "to" if self.kind == "send" else "from"
        other = f" {direction} {self.peer}{way}" if self.peer else ""
        return f"{self.kind} of {len(self.place)} bytes{other}, rank {self.rank}"


def _range(fields: Fields, prefix: str, buffers: list[bytearray], size: int = -1) -> memoryview:
    number = fields.integer(f"{prefix}buffer", 0, len(buffers) - 1)
    whole = len(buffers[number])
    begin = fields.integer(f"{prefix}offset", 0, whole)
    size = fields.integer("bytes", 0, whole - begin) if size < 0 else size
    if begin + size > whole:
        raise RefusedError(f"{fields.place}{prefix}offset: {size} bytes end beyond the buffer")
    return memoryview(buffers[number])[begin : begin + size]


class Program:
    """The steps and buffers of this server's ranks.

    Args:
        request: The field `ranks`: of each rank its number, the sizes of its `buffers`, the
            `inputs` that are filled before a run, the `expected` results, and its `steps`.

    Raises:
        RefusedError: if a field is wrong, or the buffers don't fit into memory.
    """

    def __init__(self, request: Fields, server: str) -> None:
        self.ranks: list[int] = []
        self.buffers: list[bytearray] = []
        self.steps: list[Step] = []
        self.inputs: list[tuple[Content, memoryview]] = []
        self.expected: list[tuple[int, Content, memoryview]] = []
        requests = request.objects("ranks")
        sizes = [fields.integers("buffers", []) for fields in requests]
        allocated = iter(allocate([size for rank in sizes for size in rank], "the program"))
        for fields, rank_sizes in zip(requests, sizes):
            rank = fields.integer("rank", 0, 1 << 32)
            buffers = [next(allocated) for _ in rank_sizes]
            self.ranks.append(rank)
            self.buffers += buffers
            first = len(self.steps)
            steps = fields.objects("steps")
            self.steps += [Step(rank, step, buffers, first) for step in steps]
            self.inputs += [_content(item, buffers) for item in fields.objects("inputs")]
            for item in fields.objects("expected"):
                self.expected.append((rank, *_content(item, buffers)))
        self.followers: list[list[int]] = [[] for _ in self.steps]
        self.local: dict[int, list[int]] = {}
        for position, step in enumerate(self.steps):
            for before in step.after:
                if not 0 <= before < len(self.steps):
                    raise RefusedError(f"{step}: it waits for step {before}, which is not there")
                self.followers[before].append(position)
            if step.peer == server:
                self.local.setdefault(step.message, []).append(position)
        for message, ends in self.local.items():
            if len(ends) != 2 or {self.steps[end].kind == "send" for end in ends} != {True, False}:
                raise RefusedError(f"message {message}: it needs one send and one receive")
            ends.sort(key=lambda end: self.steps[end].kind != "send")

    def fill(self, resources: Resources) -> None:
        """Clear all buffers and fill the inputs."""
        for buffer in self.buffers:
            buffer[:] = bytes(len(buffer))
        for content, place in self.inputs:
            content.write(resources.pattern, place)

    def wrong(self, resources: Resources) -> dict[int, int]:
        """Return how many numbers of each rank's results are wrong.

        Equal results of several ranks are computed once.
        """
        counts = dict.fromkeys(self.ranks, 0)
        groups: dict[Any, list[tuple[int, Content, memoryview]]] = {}
        for result in self.expected:
            _, content, place = result
            groups.setdefault((content, len(place)), []).append(result)
        for group in groups.values():
            ranks, contents, places = zip(*group)
            for rank, count in zip(ranks, contents[0].wrong(resources.pattern, places)):
                counts[rank] += count
        return counts


def _content(fields: Fields, buffers: list[bytearray]) -> tuple[Content, memoryview]:
    terms, element = fields.integer_pairs("terms"), fields.integer("element", 1, 8, 1)
    return Content(tuple(terms), element), _range(fields, "", buffers)


class Run:
    """Run of a program, from `prepare` until all its steps have ended or one has failed.

    A message leaves when its sender's step is ready and its receiver has granted it, so that all
    that arrives has its place in memory. A connection carries the messages of many ranks one after
    another; none of them waits in it for a receiver that isn't ready. A message whose place is free
    from the start is granted beforehand.

    Args:
        number: Number of the run, which no other run has.
    """

    def __init__(
        self, number: int, program: Program, resources: Resources, connections: Connections
    ) -> None:
        self.number, self.program = number, program
        self.resources, self.connections = resources, connections
        self.waits = [len(step.after) for step in program.steps]
        self.first_ns = [0] * len(program.steps)
        self.ended_ns = [0] * len(program.steps)
        self.unfinished = len(program.steps)
        self.sends: dict[int, Send] = {}  # by position of the step
        self.receives: dict[int, Receive] = {}
        self.grants: set[int] = set()
        self.ready_ends: dict[int, int] = {}  # sends that wait for a grant, by message
        self.copied: set[int] = set()  # messages between GPUs of this server
        self.ports: dict[tuple[str, int], int] = {}  # until when a GPU's NVSwitch port is in use
        self.due: deque[int] = deque()
        self.is_working = False
        self.why = ""
        self.began_ns = 0
        self.timers: list[Timer] = []
        self.send_event: Callable[[dict[str, Any]], object] = lambda _event: None
        self.with_times = False
        for position, step in enumerate(program.steps):
            if step.peer in ("", resources.name):
                continue
            key = TransferKey(number, step.peer, step.path, step.message)
            is_sum = step.kind == "receive_add"
            place = Sum(step.place, step.element) if is_sum else Place(step.place)
            transfer: Send | Receive
            if step.kind == "send":
                transfer = self.sends[position] = Send(key, place.length, step.rate_bps, place)
                if step.granted:
                    self.grants.add(step.message)
            else:
                transfer = self.receives[position] = Receive(key, place.length, place)
                resources.arrivals.expected[key] = transfer
            transfer.on_end = partial(self._transfer_ended, position, transfer)
        resources.runs[number] = self

    def start(self, request: Fields, send_event: Callable[[dict[str, Any]], object]) -> None:
        """Begin at `start_ns`; an event reports the end, at `deadline_ns` at the latest."""
        start_ns = request.integer("start_ns", 0, 1 << 63)
        deadline_ns = request.integer("deadline_ns", 0, 1 << 63)
        self.with_times = bool(request.values.get("times"))
        self.send_event = send_event
        call_at = self.resources.loop.call_at
        self.timers += [
            call_at(start_ns, self._begin, precise=True),
            call_at(deadline_ns, self._deadline),
        ]

    def fail(self, why: str) -> None:
        """End the run before all of its steps have ended."""
        if self.why or self.number not in self.resources.runs:
            return
        self.why = why
        for transfer in (*self.sends.values(), *self.receives.values()):
            transfer.on_end = None
        for send in self.sends.values():
            if send.ok is None:
                self.connections.abandon(send)
        self._end()

    def granted(self, number: int) -> None:
        """Note that a message may be sent; send it if its step waits for that."""
        self.grants.add(number)
        position = self.ready_ends.pop(number, None)
        if position is not None:
            self.connections.send(self.sends[position])

    def _begin(self) -> None:
        self.began_ns = NOW()
        self.due += [position for position, count in enumerate(self.waits) if not count]
        if not self.unfinished:
            self._end()
        self._work()

    def _work(self) -> None:
        """Start the steps that are due; steps that end meanwhile make others due."""
        if self.is_working or not self.began_ns:
            return
        self.is_working = True
        while self.due and not self.why:
            self._start(self.due.popleft())
        self.is_working = False

    def _start(self, position: int) -> None:
        step = self.program.steps[position]
        self.first_ns[position] = NOW()
        if step.kind == "compute":
            self._call_after(step.wall_ns, partial(self._ended, [position]))
        elif step.kind == "copy":
            step.place[:] = step.source
            self._ended([position])
        elif step.peer == self.resources.name:
            self._meet(position)
        elif step.kind == "send":
            if step.message in self.grants:
                self.connections.send(self.sends[position])
            else:
                self.ready_ends[step.message] = position
        else:
            self._receive(position)

    def _receive(self, position: int) -> None:
        """Grant a message, unless that was done beforehand; it may have arrived already."""
        step = self.program.steps[position]
        if self.receives[position].ok:
            self._ended([position])
        elif not step.granted:
            connection = self.resources.incoming.get((step.peer, step.path))
            if connection is None:
                self.fail(f"{step.peer} has no connection to here by {step.path}")
            else:
                connection.send_bytes(wire.GRANT.pack(self.number, step.message))

    def _meet(self, position: int) -> None:
        """Copy a message between two GPUs of this server.

        The copy begins as soon as both ends are ready, or the sender if the message is granted
        beforehand; the receiver's step ends once it is ready, too.
        """
        message = self.program.steps[position].message
        sending, receiving = self.program.local[message]
        if self.program.steps[receiving].granted:
            if position == receiving:
                if message in self.copied:
                    self._ended([receiving])
                return
        elif not (self.first_ns[sending] and self.first_ns[receiving]):
            return
        send, receive = self.program.steps[sending], self.program.steps[receiving]
        ports = ("out", send.rank), ("in", receive.rank)
        now = NOW()
        end_ns = max(now, *(self.ports.get(port, 0) for port in ports)) + send.wall_ns
        self.ports.update(dict.fromkeys(ports, end_ns))

        def finish() -> None:
            if receive.kind == "receive_add":
                add(receive.place, send.place, receive.element)
            else:
                receive.place[:] = send.place
            self.copied.add(message)
            self._ended([sending, receiving] if self.first_ns[receiving] else [sending])

        self._call_after(end_ns - now, finish)

    def _call_after(self, wall_ns: int, call: Callable[[], object]) -> None:
        if wall_ns > 0:
            self.timers.append(self.resources.loop.call_at(NOW() + wall_ns, call, precise=True))
        else:
            call()

    def _transfer_ended(self, position: int, transfer: Transfer) -> None:
        if not transfer.ok:
            self.fail(f"{self.program.steps[position]}: {transfer.why}")
        elif self.first_ns[position]:  # else it has arrived before; `_receive` ends its step
            self._ended([position])

    def _ended(self, positions: list[int]) -> None:
        """End steps, and start those that waited for them last."""
        now = NOW()
        for position in positions:
            self.ended_ns[position] = now
            self.unfinished -= 1
            for follower in self.program.followers[position]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    self.due.append(follower)
        if not self.unfinished:
            self._end()
        self._work()

    def _deadline(self) -> None:
        unfinished = [
            str(step) for step, end_ns in zip(self.program.steps, self.ended_ns) if not end_ns
        ]
        more = f" (and {len(unfinished) - 1} more)" if len(unfinished) > 1 else ""
        self.fail(f"{unfinished[0]}{more} had not ended at the deadline")

    def _end(self) -> None:
        """Report the end."""
        for timer in self.timers:
            timer.cancel()
        self.resources.runs.pop(self.number, None)
        self.resources.arrivals.collective_ended(self.number, [*self.receives.values()])
        ends: dict[int, int] = dict.fromkeys(self.program.ranks, self.began_ns)
        for step, end_ns in zip(self.program.steps, self.ended_ns):
            ends[step.rank] = max(ends[step.rank], end_ns)
        event: dict[str, Any] = {
            "event": "done",
            "collective": self.number,
            "why": self.why,
            "began_ns": self.began_ns,
            "ranks": [{"rank": rank, "ended_ns": end_ns} for rank, end_ns in ends.items()],
        }
        if self.with_times:
            event["times"] = [list(times) for times in zip(self.first_ns, self.ended_ns)]
        self.send_event(event)


class Programs:
    """The programs that are loaded at this agent."""

    def __init__(self, resources: Resources, connections: Connections) -> None:
        self.resources, self.connections = resources, connections
        self.programs: dict[int, Program] = {}

    def load(self, request: Fields) -> dict[str, Any]:
        """Load a program; return the bytes of its buffers."""
        number = request.integer("program", 0, (1 << 64) - 1)
        if number in self.programs:
            raise RefusedError(f"program {number} is loaded already")
        self.programs[number] = program = Program(request, self.resources.name)
        return {"memory": sum(map(len, program.buffers))}

    def prepare(self, request: Fields) -> None:
        """Get a run ready: fill the inputs if asked to, and expect its messages."""
        program, run = self._program(request), request.integer("run", 0, (1 << 64) - 1)
        if request.values.get("fill"):
            program.fill(self.resources)
        Run(run, program, self.resources, self.connections)

    def start(self, request: Fields, control: ControlChannel) -> dict[str, Any]:
        """Start a run that is prepared; an event by the channel reports its end."""
        run = self.resources.runs.get(request.integer("run", 0, (1 << 64) - 1))
        if run is None or run.timers:
            raise RefusedError(f"run {request.values['run']} is not prepared")
        run.start(request, control.send)
        return {}

    def verify(self, request: Fields) -> dict[str, Any]:
        """Return how many numbers of each rank are wrong after a run."""
        wrong = self._program(request).wrong(self.resources)
        return {"wrong": [[rank, count] for rank, count in wrong.items()]}

    def release(self, request: Fields) -> None:
        """End all runs of a program, if it is loaded, and free its memory."""
        self._release(request.integer("program", 0, (1 << 64) - 1))

    def abandon(self, number: int) -> None:
        """End a run, if it is under way."""
        if number in self.resources.runs:
            self.resources.runs[number].fail("it was abandoned")

    def close(self) -> None:
        """Release all programs."""
        for number in list(self.programs):
            self._release(number)

    def _release(self, number: int) -> None:
        program = self.programs.pop(number, None)
        for run in list(self.resources.runs.values()):
            if run.program is program:
                run.fail("its program was released")

    def _program(self, request: Fields) -> Program:
        number = request.integer("program", 0, (1 << 64) - 1)
        if number not in self.programs:
            raise RefusedError(f"program {number} is not loaded")
        return self.programs[number]
