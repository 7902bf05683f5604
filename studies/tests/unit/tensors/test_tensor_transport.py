"""The bounded-loss transport's sender and receiver over a simulated network."""

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moefabric_studies.tensors.channel import Tensor
from moefabric_studies.tensors.packets import (
    CHUNK_BYTES,
    Ack,
    Data,
    Missing,
    Packet,
    Probe,
    Stop,
    chunk_count,
    decode,
)
from moefabric_studies.tensors.receiver import Received, Receiver
from moefabric_studies.tensors.sender import MOST_TIMEOUT_S, Sender
from moefabric_studies.tensors.window import LEAST, Window

DELAY_S = 0.001
Fate = Callable[[Packet], list[float]]
"""Delays of the copies of a packet that arrive; none if the packet is lost."""


def punctual(_packet: Packet) -> list[float]:
    return [DELAY_S]


class SimulatedNetwork:
    """A sender and a receiver, and packets on their way between them."""

    def __init__(self, fate: Fate = punctual) -> None:
        self.now = 0.0
        self.sender, self.receiver, self.fate = Sender(), Receiver(), fate
        self.sent: list[Packet] = []
        self.complete: dict[int, Received] = {}
        self.completed_at: dict[int, float] = {}
        self._values: dict[int, bytes] = {}
        self._order = count()
        self._flying: list[tuple[float, int, Packet]] = []

    def send(self, tensor: int, values: bytes, loss_percent: int = 0, priority: int = 0) -> None:
        self._values[tensor] = values
        self.sender.send(Tensor(tensor, values, loss_percent, priority))

    def run(self, until: float = 60.0) -> None:
        """Let packets travel until the sender is idle and all packets have arrived."""
        while True:
            for packet in self.sender.due(self.now):
                self._transmit(packet)
            instants = [self._flying[0][0]] if self._flying else []
            if (wake_at := self.sender.wake_at()) is not None:
                instants.append(wake_at)
            if not instants:
                return
            self.now = max(self.now, min(instants))
            assert self.now < until, "the sender stalls"
            while self._flying and self._flying[0][0] <= self.now:
                self._arrive(heapq.heappop(self._flying)[2])

    def _transmit(self, packet: Packet) -> None:
        self.sent.append(packet)
        for delay_s in self.fate(packet):
            heapq.heappush(self._flying, (self.now + delay_s, next(self._order), packet))

    def _arrive(self, packet: Packet) -> None:
        if isinstance(packet, Data):
            self._transmit(Ack((packet.number,), 0))
            values = self._values[packet.tensor][packet.offset : packet.offset + CHUNK_BYTES]
            received = self.receiver.on_data(packet, memoryview(values))
            if received is not None:
                assert received.tensor not in self.complete, "complete twice"
                self.complete[received.tensor] = received
                self.completed_at[received.tensor] = self.now
                self._transmit(Stop(received.tensor))
        elif isinstance(packet, Probe):
            self._transmit(self.receiver.on_probe(packet))
        else:
            self.sender.on_signal(packet, self.now)


def content(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def sent_chunks(network: SimulatedNetwork) -> list[int]:
    return [packet.offset // CHUNK_BYTES for packet in network.sent if isinstance(packet, Data)]


@pytest.mark.parametrize("size", [4, CHUNK_BYTES, CHUNK_BYTES + 4, 50 * CHUNK_BYTES - 8])
def test_tensor_arrives_whole_without_loss(size: int) -> None:
    network = SimulatedNetwork()
    network.send(1, content(size))
    network.run()
    assert network.complete[1].values == content(size)
    assert network.complete[1].missing == ()
    assert sent_chunks(network) == list(range(chunk_count(size))), "each chunk once"


def test_tensor_is_complete_as_soon_as_no_more_than_the_bound_is_missing() -> None:
    size = 100 * CHUNK_BYTES
    network = SimulatedNetwork(lambda p: [] if isinstance(p, Data) and p.offset == 0 else [DELAY_S])
    network.send(1, content(size), loss_percent=10)
    network.run()
    received = network.complete[1]
    assert received.lost_share == pytest.approx(0.1)
    assert (0, CHUNK_BYTES) in received.missing
    for offset, length in received.missing:
        assert received.values[offset : offset + length] == bytes(length), "zeros"
    present = set(range(0, size, CHUNK_BYTES)) - {offset for offset, _ in received.missing}
    for offset in present:
        end = offset + CHUNK_BYTES
        assert received.values[offset:end] == content(size)[offset:end]


def test_stop_ends_the_rest_of_a_tensor() -> None:
    network = SimulatedNetwork()
    network.send(1, content(300 * CHUNK_BYTES), loss_percent=50)
    network.run()
    assert len(sent_chunks(network)) < 250


@given(
    seed=st.integers(0, 10_000),
    loss=st.floats(0.0, 0.6),
    duplicates=st.floats(0.0, 0.3),
    jitter_s=st.floats(0.0, 0.02),
    bounds=st.lists(st.integers(0, 50), min_size=1, max_size=4),
)
def test_every_tensor_is_complete_within_its_bound_on_any_network(
    seed: int, loss: float, duplicates: float, jitter_s: float, bounds: list[int]
) -> None:
    """Packets of all kinds are lost, repeated and reordered."""
    random = Random(seed)

    def fate(_packet: Packet) -> list[float]:
        copies = (random.random() >= loss) + (random.random() < duplicates)
        return [DELAY_S + jitter_s * random.random() for _ in range(copies)]

    network = SimulatedNetwork(fate)
    sizes = [random.randrange(4, 30 * CHUNK_BYTES, 4) for _ in bounds]
    for number, (size, bound) in enumerate(zip(sizes, bounds, strict=True)):
        network.send(number, content(size, number), bound, priority=number % 3)
    network.run()
    for number, (size, bound) in enumerate(zip(sizes, bounds, strict=True)):
        received = network.complete[number]
        assert received.lost_share <= bound / 100
        gaps = {offset for offset, _ in received.missing}
        whole = content(size, number)
        for offset in range(0, size, CHUNK_BYTES):
            chunk = received.values[offset : offset + CHUNK_BYTES]
            wanted = whole[offset : offset + CHUNK_BYTES]
            assert chunk == (bytes(len(chunk)) if offset in gaps else wanted)
    assert not network.sender._tensors


@pytest.mark.parametrize("lost_kind", [Probe, Stop, Missing])
def test_a_lost_signal_delays_the_end_by_a_timeout_at_most(lost_kind: type[Packet]) -> None:
    """The last chunk is lost once, so that a probe, its reply and a stop are needed."""
    lost: set[str] = set()

    def fate(packet: Packet) -> list[float]:
        last = isinstance(packet, Data) and packet.offset == 9 * CHUNK_BYTES
        name = "data" if last else type(packet).__name__
        if (last or isinstance(packet, lost_kind)) and name not in lost:
            lost.add(name)
            return []
        return [DELAY_S]

    network = SimulatedNetwork(fate)
    network.send(1, content(10 * CHUNK_BYTES))
    network.run()
    assert len(lost) == 2, "the signal was needed"
    assert network.completed_at[1] < 0.05
    assert network.now < 0.1


def test_probes_of_a_silent_receiver_back_off() -> None:
    network = SimulatedNetwork(lambda _packet: [])
    network.send(1, content(CHUNK_BYTES))
    with pytest.raises(AssertionError, match="stalls"):
        network.run(until=4.0)
    probes = sum(isinstance(packet, Probe) for packet in network.sent)
    assert 4.0 / MOST_TIMEOUT_S <= probes <= 4.0 / MOST_TIMEOUT_S + 5


def test_reply_to_an_earlier_probe_repeats_nothing() -> None:
    sender = Sender()
    sender.send(Tensor(1, bytes(CHUNK_BYTES)))
    [_, first] = sender.due(0.0)
    assert isinstance(first, Probe)
    [second] = sender.due(1.0)
    sender.on_signal(Missing(1, first.probe, (0,)), 1.0)
    assert list(sender.due(1.0)) == []
    assert isinstance(second, Probe)
    for _ in range(2):  # the reply comes twice
        sender.on_signal(Missing(1, second.probe, (0,)), 1.0)
    assert [type(packet) for packet in sender.due(1.0)] == [Data, Probe]


def test_front_layer_is_sent_first() -> None:
    sender = Sender(Window(4))
    sender.send(Tensor(1, bytes(3 * CHUNK_BYTES), priority=2))
    sender.send(Tensor(2, bytes(2 * CHUNK_BYTES), priority=0))
    chunks = [packet for packet in sender.due(0.0) if isinstance(packet, Data)]
    assert [packet.tensor for packet in chunks] == [2, 2, 1, 1]


def test_window_limits_the_packets_in_flight_until_they_are_acknowledged_or_overdue() -> None:
    sender = Sender(Window(2))
    sender.send(Tensor(1, bytes(10 * CHUNK_BYTES)))
    first, second = list(sender.due(0.0))
    assert isinstance(first, Data)
    assert isinstance(second, Data)
    assert list(sender.due(0.001)) == []
    sender.on_signal(Ack((first.number,), 0), 0.001)
    assert len(list(sender.due(0.001))) == 2, "one for the acknowledged one, one for growth"
    assert len(list(sender.due(1.0))) == LEAST, "all are overdue"


def test_packet_counts_as_lost_when_later_ones_have_arrived() -> None:
    sender = Sender(Window(6), reordering=3)
    sender.send(Tensor(1, bytes(20 * CHUNK_BYTES)))
    numbers = [packet.number for packet in sender.due(0.0) if isinstance(packet, Data)]
    sender.on_signal(Ack((numbers[2],), 0), 0.001)
    in_time = len(list(sender.due(0.001)))
    sender.on_signal(Ack((numbers[3],), 0), 0.001)
    assert len(list(sender.due(0.001))) == in_time + 1, "the first one has left the window"


def test_window_grows_in_slow_start_and_shrinks_by_half_of_the_marked_share() -> None:
    window = Window(10)
    window.on_ack(10, 0)
    assert window.packets == 20
    window.on_ack(20, 20)
    assert window.packets == pytest.approx(20 * (1 - window.alpha / 2))
    before = window.packets
    window.on_ack(20, 0)
    assert window.packets == before + 1
    for _ in range(200):
        window.on_ack(100, 1)
    assert window.alpha == pytest.approx(0.01, rel=0.2)


def test_window_ignores_losses_within_the_bound() -> None:
    window = Window(20)
    window.on_loss(2, 0.1)
    window.on_ack(18, 0)
    assert window.packets == 38
    window = Window(20)
    window.on_loss(4, 0.1)
    window.on_ack(16, 0)
    assert window.packets < 36
    for _ in range(1000):
        window.on_loss(1, 0.1)
    assert window.packets == LEAST


@pytest.mark.parametrize(
    "packet",
    [Data(7, 4000, 10, 1400, 99), Probe(7, 4000, 10, 3), Stop(7), Ack((1, 2, 70000), 2),
     Missing(7, 3, (0, 9, 1300))],
)  # fmt: skip
def test_packets_survive_encoding(packet: Packet) -> None:
    assert decode(packet.encode()) == packet


@pytest.mark.parametrize("junk", [b"", b"\0", b"\x09" + bytes(30), b"\x04\0"])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match="packet"):
        decode(junk)


def test_chunks_of_no_tensor_are_refused() -> None:
    receiver = Receiver()
    for offset, values in ((4, bytes(CHUNK_BYTES)), (0, bytes(4)), (2 * CHUNK_BYTES, bytes(4))):
        with pytest.raises(ValueError, match="no chunk"):
            receiver.on_data(Data(1, 2 * CHUNK_BYTES, 0, offset, 1), memoryview(values))


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 1, 2]])
def test_order_must_hold_every_chunk_once(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order"):
        Sender().send(Tensor(1, bytes(2 * CHUNK_BYTES), order=order))
