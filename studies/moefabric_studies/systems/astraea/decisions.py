"""Astraea's decisions (EuroSys'24, arXiv 2403.01798): an actor network changes each window.

Every 20 ms each flow acts on its own measurements of the last five intervals: a number from -1 to
1, by which its window shrinks or grows by up to 2.5 %. State, action and the layers' widths are
those of the authors' code. Windows start as the kernel's do; losses matter only as a measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric import SpecError

INTERVAL_S: Final = 0.02
"""Time between two actions; the authors train with 30 ms and serve with 20 ms."""
HISTORY: Final = 5
FEATURES: Final = 10
WIDTHS: Final = (HISTORY * FEATURES, 256, 128, 64, 1)
STEP: Final = 0.025
LEAK: Final = 0.2
LEAST_WINDOW: Final = 4
"""Packets; with fewer in flight, a loss waits for a time-out."""
OWN_WEIGHTS: Final = Path(__file__).with_name("astraea.npz")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measurements:
    """Measurements of flows in one interval; each is an array with a value for each flow.

    Arrays are NumPy's, or PyTorch's where the actor is trained.

    Attributes:
        throughput: Delivered bytes a second.
        most: The flow's highest throughput so far.
        rtt: Mean round-trip time in s.
        smoothed_rtt: Smoothed round-trip time in s.
        least_rtt: The flow's lowest round-trip time so far in s.
        window: Packets.
        packet: Bytes of a packet.
        lost: Bytes lost in a second.
        inflight: Packets without an acknowledgement.
        pacing: Pacing rate in bytes a second.
        resent: Packets sent again and not acknowledged.
    """

    throughput: Any
    most: Any
    rtt: Any
    smoothed_rtt: Any
    least_rtt: Any
    window: Any
    packet: Any
    lost: Any
    inflight: Any
    pacing: Any
    resent: Any

    def features(self) -> list[Any]:
        """Return the ten features of the state, in the order of the authors' code."""
        product = self.least_rtt * self.most
        return [
            self.throughput / self.most,
            (self.rtt / self.least_rtt).clip(max=2),
            (self.smoothed_rtt / self.least_rtt).clip(max=2),
            (self.window * self.packet * 8 / product / 10).clip(max=2),
            self.most / 1e7,
            self.least_rtt * 1e6 / 5e5,
            self.lost / self.most,
            self.inflight / self.window,
            (self.pacing / self.most).clip(max=2),
            self.resent / self.window,
        ]


@dataclass(frozen=True)
class Actor:
    """A network of four layers; hidden ones end in leaky ReLU, the last in tanh.

    Attributes:
        layers: Weights [inputs, outputs] and biases [outputs] of each layer.
    """

    layers: Sequence[tuple[Floats, Floats]]

    @classmethod
    def load(cls, path: Path = OWN_WEIGHTS) -> Self:
        """Read weights: arrays `w0`, `b0` to `w3`, `b3` of a NumPy file.

        The authors' network normalises between a layer and its activation; with mean m, variance v
        and offset c of the training, w / sqrt(v + 0.001) and (b - m) / sqrt(v + 0.001) + c are the
        layer's arrays here.

        Raises:
            SpecError: If the file can't be read or has other shapes.
        """
        shapes = list(pairwise(WIDTHS))
        try:
            with np.load(path, allow_pickle=False) as arrays:
                layers = [
                    (arrays[f"w{i}"].astype(float), arrays[f"b{i}"].astype(float))
                    for i in range(len(shapes))
                ]
        except (OSError, ValueError, KeyError) as error:
            raise SpecError([("weights", f"{path}: {error}: arrays w0, b0 to w3, b3")]) from error
        if [weights.shape for weights, _ in layers] != shapes:
            raise SpecError([("weights", f"{path}: the layers' widths aren't {WIDTHS}")])
        return cls(layers)

    def act(self, states: Floats) -> Floats:
        """Return an action from -1 to 1 for each state.

        Args:
            states: [flows, 50]: the ten features of each of five intervals, the oldest first.
        """
        values = states
        for weights, biases in self.layers[:-1]:
            values = values @ weights + biases
            values = np.where(values > 0, values, LEAK * values)
        weights, biases = self.layers[-1]
        actions: Floats = np.tanh(values @ weights + biases)[:, 0]
        return actions


def next_window(window: Floats, action: Floats) -> Floats:
    """Return windows after an action, in whole packets: at least one more or one less."""
    grown = np.ceil(window * (1 + STEP * action))
    shrunk = np.floor(window / (1 - STEP * action))
    return np.maximum(np.where(action >= 0, grown, shrunk), LEAST_WINDOW)
