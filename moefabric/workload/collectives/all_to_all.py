"""All-to-alls between ranks as peers: all at once, in a window, or pair by pair.

Sizes may differ and be zero (all-to-all-v). In round i, each rank sends to the rank i after it, and
receives from the rank i before it, so that no rank is the target of two ranks of a round.
"""

from collections.abc import Sequence
from typing import Final

from moefabric.core.errors import SpecError
from moefabric.workload.collectives.schedule import Call
from moefabric.workload.collectives.steps import Numbers, RankSteps, StepwiseSchedule


class WindowedAllToAll(StepwiseSchedule):
    """An all-to-all with a bounded number of rounds in flight.

    A round of a rank starts when its round `window` before has ended. With a window of one round
    this is MPI's pairwise exchange; without a bound, all messages start at once.
    """

    kinds = ("all_to_all",)

    def __init__(self, window: int | None = 4, name: str = "windowed") -> None:
        """Choose the window.

        Args:
            window: Rounds in flight; None is all.
            name: Name of the algorithm.

        Raises:
            SpecError: If the window has no round.
        """
        if window is not None and window < 1:
            raise SpecError([(f"schedule {name}", f"a window of {window} rounds sends nothing")])
        self.window, self.name = window, name

    def add_steps(self, call: Call, ranks: Sequence[RankSteps]) -> None:
        """Add the steps of an all-to-all."""
        window = self.window or call.ranks
        for rank, steps in enumerate(ranks):
            steps.copy(call.input_part(rank, rank), call.output_part(rank, rank), "local")
            rounds: list[Numbers] = []
            for i in range(1, call.ranks):
                after = rounds[i - 1 - window] if i > window else ()
                target, source = (rank + i) % call.ranks, (rank - i) % call.ranks
                sent = steps.send(target, call.input_part(rank, target), "exchange", after=after)
                part = call.output_part(rank, source)
                received = steps.receive(source, part, "exchange", after=after)
                rounds.append(tuple(sorted({*sent, *received})))


PAIRWISE: Final = WindowedAllToAll(1, "pairwise")
WINDOWED: Final = WindowedAllToAll()
