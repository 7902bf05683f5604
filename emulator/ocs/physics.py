"""What a switch's light does by nature: how long it takes to settle, and what is lost on the way."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from emulator.ocs.matching import Pair
from moefabric.ocs_profile import Loss, Settle


@dataclass
class Settling:
    """The times that a device takes, one after the other: equal seeds give equal times."""

    settle: Settle
    seed: str
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"settle {self.seed}")

    def times_ns(self, made: Sequence[Pair], *, conflicts: bool) -> list[int]:
        """How long each of the cross-connects made by one command is dark, in their order.

        `conflicts`: the command has to part older ones first, since their ports are wanted.
        """
        settle = self.settle
        fixed = settle.fixed_ns + settle.bulk_ns * (len(made) > 1) + settle.conflict_ns * conflicts
        if not settle.jitter_ns and not settle.serial_ns:
            return [fixed] * len(made)
        times = [max(0, fixed + self._jitter_ns() + k * settle.serial_ns) for k in range(len(made))]
        return [max(times)] * len(times) if settle.bulk == "together" and times else times

    def _jitter_ns(self) -> int:
        width = self.settle.jitter_ns
        if not width:
            return 0
        match self.settle.jitter:
            case "uniform":
                return round(self._random.uniform(-width, width))
            case "normal":
                return round(self._random.gauss(0, width))
            case "exponential":
                return round(self._random.expovariate(1 / width))


def loss_db(loss: Loss, seed: str, pair: Pair) -> float:
    """What a path loses: always the same for the same seed."""
    if not loss.spread_db:
        return loss.typical_db
    spread = random.Random(f"loss {seed} {pair[0]} {pair[1]}").uniform(-loss.spread_db, loss.spread_db)
    return max(0.0, loss.typical_db + spread)


def conflicting(before: Collection[Pair], after: Collection[Pair]) -> bool:
    """Whether a port of a new cross-connect had another one, which went in the same command."""
    parted, made = set(before) - set(after), set(after) - set(before)
    inputs, outputs = {p for p, _ in parted}, {q for _, q in parted}
    return any(p in inputs or q in outputs for p, q in made)
