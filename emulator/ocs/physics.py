"""Physical behaviour of a switch: settle times and path losses."""

import random
from collections.abc import Collection, Iterable, Sequence
from itertools import cycle

from moefabric.core.ocs import OpticalLoss, RandomTime, SettleTime
from moefabric.emulator.ocs.cross_connects import Pair


class Settling:
    """Sequence of settle times of a device; equal seeds give equal sequences."""

    def __init__(self, settle: SettleTime, seed: str) -> None:
        self.settle, self._random = settle, random.Random(f"settle {seed}")

    def times_ns(self, added: Sequence[Pair], *, conflicts: bool) -> list[int]:
        """Draw the settle times of the cross-connects that one command makes.

        Args:
            conflicts: whether the command removes older cross-connects of the same ports first.

        Returns:
            Settle times in ns, in the order of `added`.
        """
        settle = self.settle
        fixed = settle.fixed_ns + settle.bulk_ns * (len(added) > 1) + settle.conflict_ns * conflicts
        if not settle.jitter_ns and not settle.per_connection_ns:
            return [fixed] * len(added)
        draws = 1 if settle.jitter_per == "command" else len(added)
        jitters = cycle([_jitter_ns(settle, self._random) for _ in range(draws)])
        times = [
            max(0, fixed + jitter + k * settle.per_connection_ns)
            for k, jitter in zip(range(len(added)), jitters, strict=False)
        ]
        return [max(times)] * len(times) if settle.lit == "together" and times else times


class Activation:
    """Sequence of times from light to a NIC's link; equal seeds give equal sequences."""

    def __init__(self, link_up: RandomTime, seed: str) -> None:
        self.link_up, self._random = link_up, random.Random(f"link {seed}")

    def time_ns(self) -> int:
        """Draw the time of one NIC."""
        return max(0, self.link_up.fixed_ns + _jitter_ns(self.link_up, self._random))


def _jitter_ns(time: RandomTime, generator: random.Random) -> int:
    width = time.jitter_ns
    if not width:
        return 0
    match time.distribution:
        case "uniform":
            return round(generator.uniform(-width, width))
        case "normal":
            return round(generator.gauss(0, width))
        case "exponential":
            return round(generator.expovariate(1 / width))


def loss_db(loss: OpticalLoss, seed: str, pair: Pair) -> float:
    """Return the loss of a path in dB; equal seeds give equal losses."""
    if not loss.spread_db:
        return loss.typical_db
    generator = random.Random(f"loss {seed} {pair[0]} {pair[1]}")
    return max(0.0, loss.typical_db + generator.uniform(-loss.spread_db, loss.spread_db))


def conflicting(added: Iterable[Pair], removed: Collection[Pair]) -> bool:
    """Return whether a new cross-connect reuses a port of one that the same command removes."""
    inputs, outputs = {p for p, _ in removed}, {q for _, q in removed}
    return any(p in inputs or q in outputs for p, q in added)
