"""The hand-over of a micro-batch to the next pipeline stage beside the all-to-all that it waits for, sequence by sequence.

A sequence goes on to the next stage as soon as its own tokens are back from the experts, while those of others still come: the EPS carries the transfer, and
light more of the all-to-all. Forward it follows the last layer's combine; backward, the first layer's last all-to-all (the same matrix, paper
section 5.1) and its attention, in which no sequence sees another. Experts still compute for the whole micro-batch at once.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from controller.planner import water
from moefabric.model import BACKWARD
from moefabric.paper.iteration import Iteration, of
from moefabric.paper.job import Array, Job
from moefabric.paper.network import AllToAll, byte_rate, leaf, lit_rates

_ALL_TO_ALL: Final = "all-to-all"
_ATTENTION: Final = "attention"
_TRANSFER: Final = "transfer"


@dataclass(frozen=True)
class HandOver:
    """What one micro-batch's hand-over is made of.

    `owed[from, to]` bytes of the all-to-all, `light[from, to]` bytes a second, `budgets` bytes a second that each server has to the EPS each way,
    `handed` bytes that each sends on, `attention_s` between the two. Sequences owe alike. Servers of the next stage are idle and have the same budgets.
    """

    owed: Array
    light: Array
    budgets: Array
    handed: float
    sequences: int
    attention_s: float = 0.0

    @property
    def seconds(self) -> float:
        """From the all-to-all's first byte to the transfer's last, by the sooner of the two ways."""
        return min(self.in_turn_s, self.beside_s)

    @property
    def in_turn_s(self) -> float:
        """The whole micro-batch's all-to-all, then its attention, then its transfer."""
        return sum(self.sequences * self._step_s({part}) for part in (_ALL_TO_ALL, _ATTENTION, _TRANSFER))

    @property
    def beside_s(self) -> float:
        """In lock-step: each step carries one sequence's all-to-all, computes on the one before, and transfers the one before that."""
        parts = [_ALL_TO_ALL, *([_ATTENTION] if self.attention_s else []), _TRANSFER]
        steps = range(self.sequences + len(parts) - 1)
        return sum(
            self._step_s({part for behind, part in enumerate(parts) if 0 <= step - behind < self.sequences})
            for step in steps
        )

    def _step_s(self, parts: set[str]) -> float:
        """One sequence's parts at once, each of another sequence: the NICs carry bytes of both while the GPUs compute."""
        owed = self.owed / self.sequences if _ALL_TO_ALL in parts else np.zeros_like(self.owed)
        leaving = np.full(len(owed), self.handed / self.sequences if _TRANSFER in parts else 0.0)
        beside = np.concatenate([leaving, np.zeros(len(owed))])  # it is of another region that it arrives
        computing = self.attention_s / self.sequences if _ATTENTION in parts else 0.0
        return max(computing, water.seconds(owed, self.light, leaf(self.budgets), beside))


def overlapped(job: Job, sent: AllToAll, electrical: int, rate_bps: float) -> Iteration:
    """An iteration whose transfers between stages go beside the all-to-alls before them, while the pipeline fills and drains.

    `sent` over its circuits and `electrical` NICs a server, each pair by both at once; on an EPS without light, the same.
    """
    rate = byte_rate(rate_bps)
    light = lit_rates(sent.circuits, rate) if sent.circuits.size else np.zeros_like(job.owed)
    forward = HandOver(
        job.owed.T,
        light,
        np.full(job.servers, electrical * rate),
        job.stage_bytes,
        job.training.micro_batch,
    )
    attention_s = BACKWARD * job.training.attention_s(job.model)
    backward = replace(forward, attention_s=attention_s)
    longer = forward.seconds + backward.seconds - 2 * sent.combine_s - attention_s
    return replace(of(job, sent, electrical * rate), pipeline_s=(job.pp - 1) * longer)
