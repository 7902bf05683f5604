"""Astraea's policy on the sockets of this machine: a thread that acts on the table of windows."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api.links import ROW, ROWS, WindowTable, window_table
from moefabric_studies.systems.astraea import decisions
from moefabric_studies.systems.astraea.decisions import FEATURES, HISTORY, INTERVAL_S, Actor, Floats

FIRST_WINDOW: Final = 10
"""Packets (RFC 6928)."""
MOST_WINDOW: Final = 20_000
"""Packets; a flow that doesn't fill its window would let it grow for ever."""
_STOP_S: Final = 10.0
HEADERS: Final = 52
"""Bytes of a packet before its payload: IPv4, TCP and its time stamps."""


class FlowMemory:
    """Memory of the policy for each row of the table: the last values and five states."""

    def __init__(self) -> None:
        self._last = np.zeros(ROWS, ROW)
        self._most = np.zeros(ROWS)
        self._states = np.zeros((ROWS, HISTORY, FEATURES))

    def states(
        self, numbers: NDArray[np.int64], rows: NDArray[np.void], interval_s: float
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Take measurements in.

        Args:
            numbers: Numbers of the rows.
            interval_s: Time since the last measurements.

        Returns:
            Which rows got acknowledgements since then, and the states [flows, 50] of these.
        """
        before = self._last[numbers]
        is_new = before["socket"] != rows["socket"]
        self._most[numbers[is_new]] = 0
        before[is_new] = np.zeros((), ROW)
        before["lost"][is_new] = rows["lost"][is_new]
        self._last[numbers] = rows
        samples = rows["acknowledgements"] - before["acknowledgements"]
        acts = (samples > 0) & (rows["rate_interval_us"] > 0) & (rows["srtt_us"] > 0)
        active, acting = numbers[acts], rows[acts]
        packet = acting["mss_cache"].astype(float)
        throughput = acting["rate_delivered"] * packet / acting["rate_interval_us"] * 1e6
        self._most[active] = np.maximum(self._most[active], throughput)
        smoothed = acting["srtt_us"] / 8e6
        lost = (acting["lost"] - before["lost"][acts]).astype(float)
        measured = decisions.Measurements(
            throughput,
            self._most[active],
            (acting["rtt_sum_us"] - before["rtt_sum_us"][acts]) / samples[acts] / 1e6,
            smoothed,
            np.maximum(acting["min_rtt_us"], 1) / 1e6,
            acting["snd_cwnd"].astype(float),
            packet,
            lost * packet / interval_s,
            acting["packets_out"].astype(float),
            pacing_rate(acting["snd_cwnd"], acting),
            acting["retrans_out"].astype(float),
        )
        features = np.stack(measured.features(), axis=-1)
        fresh = is_new[acts]
        self._states[active] = np.roll(self._states[active], -1, axis=1)
        self._states[active, -1] = features
        self._states[active[fresh]] = features[fresh, None]
        return acts, self._states[active].reshape(len(active), HISTORY * FEATURES)


def pacing_rate(windows: NDArray[np.generic], rows: NDArray[np.void]) -> Floats:
    """Return the rates that send windows in a smoothed round-trip time, in bytes a second."""
    packets = np.maximum(windows.astype(float), rows["packets_out"])
    rates: Floats = packets * (rows["mss_cache"] + float(HEADERS)) / (rows["srtt_us"] / 8e6)
    return rates


@dataclass
class DecisionTimes:
    """Lateness and duration of the policy's decisions.

    Attributes:
        late_s: How late each decision began.
        work_s: How long each decision took.
    """

    late_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)


@contextmanager
def astraea(weights: Path) -> Iterator[str]:
    """Register Astraea and act on its flows until the end of the `with`.

    Args:
        weights: The actor's weights (`Actor.load`).

    Yields:
        The name of the congestion control.

    Raises:
        UnsupportedError: As `congestion_control`.
        SpecError: The weights can't be used.
    """
    with governed(Actor.load(weights)) as (name, _):
        yield name


@contextmanager
def governed(actor: Actor) -> Iterator[tuple[str, DecisionTimes]]:
    """Register Astraea with an actor; yields also how the policy keeps its intervals."""
    stopped, times = threading.Event(), DecisionTimes()
    with window_table("astraea") as table, ThreadPoolExecutor(1, "astraea") as pool:
        task = pool.submit(_govern, table, actor, stopped, times)
        try:
            yield table.name, times
        finally:
            stopped.set()
            task.result(_STOP_S)


def _govern(
    table: WindowTable, actor: Actor, stopped: threading.Event, times: DecisionTimes
) -> None:
    """Act once in each interval; an interval that was missed is left out."""
    memory, last_s = FlowMemory(), monotonic()
    due_s = last_s + INTERVAL_S
    while not stopped.wait(max(0.0, due_s - monotonic())):
        began_s = monotonic()
        act(table, actor, memory, began_s - last_s)
        times.late_s.append(began_s - due_s)
        times.work_s.append(monotonic() - began_s)
        last_s, due_s = began_s, max(due_s + INTERVAL_S, began_s)


def act(table: WindowTable, actor: Actor, memory: FlowMemory, interval_s: float) -> None:
    """Decide about all flows with new acknowledgements once."""
    numbers, rows = table.measured()
    acts, states = memory.states(numbers, rows, interval_s)
    if not acts.any():
        return
    acting = rows[acts]
    earlier = np.where(acting["window"] > 0, acting["window"], FIRST_WINDOW).astype(float)
    windows = np.minimum(decisions.next_window(earlier, actor.act(states)), MOST_WINDOW)
    table.decide(numbers[acts], windows, pacing_rate(windows, acting))
