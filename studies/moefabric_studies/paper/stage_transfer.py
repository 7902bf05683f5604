"""Overlap of pipeline transfers with the all-to-alls before them, sequence by sequence.

A sequence goes on to the next stage as soon as its own tokens are back from the experts, while
tokens of other sequences still arrive: the EPS carries the transfer, and circuits carry more of the
all-to-all. In the forward pass the transfer follows the last layer's combine. In the backward pass
it follows the first layer's last all-to-all (the same matrix, paper section 5.1) and its attention,
in which sequences are independent. Experts still compute for the whole micro-batch.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from moefabric.api.networks import waterfill
from moefabric_studies.paper.iteration import Iteration, compose_iteration
from moefabric_studies.paper.job import FloatArray, PaperJob
from moefabric_studies.paper.network import AllToAll, nic_bytes_s

_ALL_TO_ALL: Final = "all-to-all"
_ATTENTION: Final = "attention"
_TRANSFER: Final = "transfer"


@dataclass(frozen=True)
class StageTransfer:
    """All-to-all and transfer of one micro-batch to the next stage.

    All sequences have equal demand. Servers of the next stage are idle and have the same budgets.

    Attributes:
        demand: bytes [server, server] of the all-to-all.
        light: bytes per second [server, server] of the circuits.
        budgets: bytes per second of each server to the EPS, each way.
        transfer_bytes: bytes that each server sends to the next stage.
        sequences: sequences of the micro-batch.
        attention_s: compute between all-to-all and transfer.
    """

    demand: FloatArray
    light: FloatArray
    budgets: FloatArray
    transfer_bytes: float
    sequences: int
    attention_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time from the all-to-all's first to the transfer's last byte, in the faster schedule."""
        return min(self.sequential_s, self.overlapped_s)

    @property
    def sequential_s(self) -> float:
        """Time if the micro-batch's all-to-all, attention and transfer follow each other."""
        return sum(
            self.sequences * self._step_s({part}) for part in (_ALL_TO_ALL, _ATTENTION, _TRANSFER)
        )

    @property
    def overlapped_s(self) -> float:
        """Time if parts of successive sequences overlap.

        A step has the all-to-all of a sequence, the attention of the sequence before, and the
        transfer of the sequence before that.
        """
        parts = [_ALL_TO_ALL, *([_ATTENTION] if self.attention_s else []), _TRANSFER]
        return sum(
            self._step_s(
                {part for lag, part in enumerate(parts) if 0 <= step - lag < self.sequences}
            )
            for step in range(self.sequences + len(parts) - 1)
        )

    def _step_s(self, parts: set[str]) -> float:
        """Return the duration of parts of different sequences at once."""
        n = len(self.demand)
        demand = self.demand / self.sequences if _ALL_TO_ALL in parts else np.zeros((n, n))
        sent = np.full(n, self.transfer_bytes / self.sequences if _TRANSFER in parts else 0.0)
        transfer = np.concatenate([sent, np.zeros(n)])  # it arrives in another region
        attention_s = self.attention_s / self.sequences if _ATTENTION in parts else 0.0
        links = waterfill.EpsLinks.one_leaf(self.budgets)
        return max(attention_s, waterfill.completion_s(demand, self.light, links, transfer))


def overlapped_iteration(
    job: PaperJob, all_to_all: AllToAll, electrical: float, rate_bps: float
) -> Iteration:
    """Return an iteration whose pipeline transfers overlap while the pipeline fills and drains.

    Args:
        all_to_all: all-to-alls of a layer, in which each pair uses circuits and EPS.
        electrical: electrical NICs of a server.
        rate_bps: rate of a NIC.
    """
    rate, circuits, n = nic_bytes_s(rate_bps), all_to_all.circuits, job.servers
    forward = StageTransfer(
        demand=job.combine_bytes,
        light=np.multiply(circuits, rate) if circuits.size else np.zeros((n, n)),
        budgets=np.full(n, electrical * rate),
        transfer_bytes=job.stage_transfer_bytes,
        sequences=job.training.micro_batch,
    )
    attention_s = job.training.attention_s(job.model, "backward")
    backward = replace(forward, attention_s=attention_s)
    added_s = forward.seconds + backward.seconds - 2 * all_to_all.combine_s - attention_s
    iteration = compose_iteration(job, all_to_all, electrical * rate)
    return replace(iteration, pipeline_s=(job.pp - 1) * added_s)
