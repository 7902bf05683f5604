"""Programmable links: their effect on flows and bursts, and TCP incast over shallow queues."""

import json
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

from pydantic import Field

from moefabric import NS_PER_S, duration_text, size_text
from moefabric.api.charts import Axis, curve, document_picture, plot
from moefabric.api.links import Host, Lateness, LinkBehaviour, LinkedHosts, Scheduling, link_between
from moefabric.api.plugins import ByteSize, DurationNs, Rate, Section
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.link.incast import Incast, IncastCell, measure_incast
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

_SLOW_BPS: Final = 500e3
"""A frame of a burst takes 17 ms, so that the burst has been sent before the first one."""
_BURST: Final = 100
_PINGS: Final = 200
_PING_DELAY_NS: Final = 10_000_000
_FAST_BPS: Final = 1e9
_GOODPUT: Final = 1448 / 1514
"""Payload of a full frame of TCP with time stamps."""
_ECN: Final = 0x02
_HIGH, _LOW = 0xE0, 0x20
_PORT: Final = 5000
_PAYLOAD: Final = bytes(1000)
_HEADERS: Final = 42
"""Bytes of Ethernet, IPv4 and UDP headers."""
_WAIT_S: Final = 5.0


class Setup(Section):
    """Sizes of the incast."""

    rate: Rate
    """Rate of the receiver's link."""
    delay: DurationNs
    """Propagation delay each way."""
    block: ByteSize = Field(ge=1)
    """Bytes that each host sends in a round."""
    senders: list[int] = Field(min_length=2)
    """Numbers of senders."""
    queues: list[ByteSize] = Field(min_length=2)
    """Room of the receiver's queue in bytes."""
    rounds: int = Field(ge=2)
    """Rounds of each number of senders and queue."""
    least_timeout: DurationNs
    """The shorter least retransmission timeout."""


class LinkStudy:
    """Measures programmable links and TCP incast."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Measure single links, then incast for each queue and with a shorter timeout."""
        measures = {
            **context.keep("round trips", dict[str, Measure], _round_trips),
            **context.keep("single flow", dict[str, Measure], partial(_single_flow, setup)),
            **context.keep("bursts", dict[str, Measure], _bursts),
        }
        incast = Incast(setup.rate, setup.delay, setup.block, setup.rounds)
        cells: list[IncastCell] = []
        runs = [(queue, None) for queue in setup.queues]
        for queue, timeout_ns in [*runs, (min(setup.queues), setup.least_timeout)]:
            context.reporter.show_message(f"link: incast into {size_text(queue)}")
            measure = partial(measure_incast, incast, setup.senders, queue, timeout_ns)
            name = f"incast into {queue} bytes, timeout {timeout_ns}"
            cells += context.keep(name, list[IncastCell], measure)
        return Outcome(
            measures | collapse_measures(setup, cells),
            {"link": _picture(setup, cells)},
            captions("systems/link"),
            [_table(cells)],
        )


def _round_trips() -> dict[str, Measure]:
    """Ping over a link with a delay."""
    with link_between(LinkBehaviour(delay_ns=_PING_DELAY_NS)) as net:
        a, b = net.hosts
        words = "ping", "-c", str(_PINGS), "-i", "0.01", b.address
        output = subprocess.run(a.argv(*words), capture_output=True, text=True, check=True).stdout
    both_ms = 2 * _PING_DELAY_NS / 1e6
    excess_ms = sorted(
        float(line.split("time=")[1].split()[0]) - both_ms
        for line in output.splitlines()
        if "time=" in line
    )
    tail_ms = excess_ms[int(len(excess_ms) * 0.99)]
    return {
        "round_trip_excess": Measure.median_of(excess_ms[:: len(excess_ms) // 10]),
        "round_trip_tail": Measure(tail_ms, note=f"{len(excess_ms)} pings."),
    }


def _single_flow(setup: Setup) -> dict[str, Measure]:
    """Send one TCP flow over the incast's link, and over one faster than the relay."""
    room = int(setup.rate / 8 * 2 * setup.delay / NS_PER_S)
    behaviour = LinkBehaviour(setup.rate, setup.delay, queue_bytes=max(room, 30_000))
    with link_between(behaviour) as net:
        goodput_bps, lateness, _ = _flow(net, 3)
    with link_between(LinkBehaviour(_FAST_BPS, queue_bytes=2_000_000)) as net:
        _, fast, seconds = _flow(net, 2)
    return {
        "tcp_share": Measure(goodput_bps / (setup.rate * _GOODPUT)),
        "lateness_p99": Measure(lateness.p99_ns / 1e6, note=_lateness_text(lateness)),
        "kiloframes": Measure(fast.frames / seconds / 1e3, note=_lateness_text(fast)),
    }


def _flow(net: LinkedHosts, seconds: int) -> tuple[float, Lateness, float]:
    """Return the goodput of a flow in bits per second, the relay's lateness, and the duration."""
    a, b = net.hosts
    words = "iperf3", "--server", "--one-off", "--forceflush"
    with subprocess.Popen(b.argv(*words), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        while "listening" not in (line := server.stdout.readline()):
            assert line, "iperf3 doesn't listen"
        net.reset()
        flow = "--client", b.address, "--time", str(seconds), "--congestion", "cubic", "--json"
        client = subprocess.run(
            a.argv("iperf3", *flow), capture_output=True, text=True, check=True, timeout=60
        )
        lateness = net.counters().lateness
        server.stdout.read()
    end = json.loads(client.stdout)["end"]["sum_received"]
    return float(end["bits_per_second"]), lateness, float(end["seconds"])


def _lateness_text(lateness: Lateness) -> str:
    times = (lateness.p50_ns, lateness.p99_ns, lateness.max_ns)
    p50, p99, most = (duration_text(time) for time in times)
    return f"Late by {p50} in the median, {p99} in the 99th percentile, {most} at most."


def _bursts() -> dict[str, Measure]:
    """Send bursts to a full queue, over a threshold, and of two classes."""
    frame = frame_bytes()
    with link_between(LinkBehaviour(_SLOW_BPS, queue_bytes=20 * frame)) as net:
        send_burst(net, [0] * _BURST)
        dropped = net.counters().ports["p1"].dropped
    with link_between(LinkBehaviour(_SLOW_BPS, ecn_bytes=10 * frame)) as net:
        send_burst(net, [_ECN] * _BURST)
        marked = net.counters().ports["p1"].marked
    with link_between(LinkBehaviour(_SLOW_BPS, scheduling=Scheduling.PRIORITY)) as net:
        classes = received_classes(net, [_LOW, _HIGH] * (_BURST // 2))
    inversions = sum(_HIGH in classes[n:] for n, one in enumerate(classes) if n and one == _LOW)
    return {
        "dropped": Measure(dropped),
        "marked": Measure(marked),
        "inversions": Measure(inversions, note=f"{len(classes)} frames."),
    }


def collapse_measures(setup: Setup, cells: Sequence[IncastCell]) -> dict[str, Measure]:
    """Return the claims with the measured goodputs of the incast."""
    shallow, deeper, *_ = sorted(setup.queues)
    plain = [cell for cell in cells if cell.least_timeout_ns is None]
    worst = min((c for c in plain if c.queue_bytes == shallow), key=lambda cell: cell.share)
    short = next(c for c in cells if c.least_timeout_ns and c.senders == worst.senders)
    until_half = [
        next(
            (c.senders for c in plain if c.queue_bytes == queue and c.share < 0.5),
            2 * max(setup.senders),
        )
        for queue in (shallow, deeper)
    ]
    return {
        "collapse": worst.lost_share(),
        "collapse_short_timeout": short.lost_share(),
        "senders_until_half": Measure(
            until_half[1] / until_half[0],
            note=f"{until_half[0]} senders at {size_text(shallow)}, "
            f"{until_half[1]} at {size_text(deeper)}.",
        ),
    }


def _picture(setup: Setup, cells: Sequence[IncastCell]) -> str:
    """Draw goodput and the slowest rounds over the number of senders."""
    names = dict.fromkeys(cell.name for cell in cells)
    by_name = {name: [cell for cell in cells if cell.name == name] for name in names}
    texts = {float(n): str(n) for n in setup.senders}
    senders = Axis(min(texts), max(texts), texts, "senders", logarithmic=True)
    share = Axis(0.0, 1.0, {n / 4: f"{25 * n} %" for n in range(5)})
    slowdown = Axis(1.0, 100.0, {1.0: "1", 10.0: "10", 100.0: "100"}, logarithmic=True)
    goodput = (
        curve(number, [(c.senders, c.share, f"{name}: {c.share:.0%}") for c in queue_cells])
        for number, (name, queue_cells) in enumerate(by_name.items())
    )
    rounds = (
        curve(number, [(c.senders, c.slowdown, f"{name}: {c.slowdown:.1f}x") for c in queue_cells])
        for number, (name, queue_cells) in enumerate(by_name.items())
    )
    panels = [
        plot("Goodput, share of the link's", senders, share, goodput, 1.0),
        plot("Slowest round, relative to the bound", senders, slowdown, rounds, 1.0),
    ]
    legend = [(f"t{number}", name) for number, name in enumerate(by_name)]
    title = "TCP incast over a programmable link"
    return document_picture(title, panels, columns=2, legend=legend)


def _table(cells: Sequence[IncastCell]) -> Grid:
    rows = tuple(
        (
            cell.name,
            str(cell.senders),
            f"{cell.share:.1%}",
            duration_text(median(cell.seconds) * NS_PER_S),
            duration_text(max(cell.seconds) * NS_PER_S),
            str(cell.drops),
            duration_text(cell.lateness.p99_ns),
        )
        for cell in cells
    )
    return grid("systems/link/incast", rows)


def frame_bytes() -> int:
    """Return the length of a frame of a burst."""
    return len(_PAYLOAD) + _HEADERS


def send_burst(net: LinkedHosts, tos: Sequence[int]) -> None:
    """Send packets with these type-of-service octets from host 0 to host 1, all at once."""
    near, far = net.hosts
    with _socket(near) as sender:
        for octet in tos:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, octet)
            sender.sendto(_PAYLOAD, (far.address, _PORT))


def received_classes(net: LinkedHosts, tos: Sequence[int]) -> list[int]:
    """Send a burst, and return the octets in the order in which the packets arrive."""
    far = net.hosts[1]
    with ExitStack() as stack:
        receiver = stack.enter_context(_socket(far))
        receiver.bind((far.address, _PORT))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        receiver.settimeout(_WAIT_S)
        send_burst(net, tos)
        return [receiver.recvmsg(2000, 100)[1][0][2][0] for _ in tos]


def _socket(host: Host) -> socket.socket:
    return host.call(partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
