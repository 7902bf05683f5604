"""What an iteration has besides its MoE layers: layers without experts, head and optimiser.

They take their part of the time that they take in the whole model, if only some of its MoE layers
are replayed. Looking up embeddings takes no time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from moefabric.workload.iterations.iteration import Compute, Operation
from moefabric.workload.models.model import DIRECTIONS, Model, Training


@dataclass(frozen=True)
class OuterLayers:
    """Model seconds of a pipeline stage outside of its MoE layers.

    Attributes:
        dense_s: Of layers without experts, by direction.
        head_s: Of the head in both passes, which follow each other.
        optimiser_s: Of the optimiser.
    """

    dense_s: tuple[float, ...]
    head_s: float
    optimiser_s: float

    @classmethod
    def of(cls, model: Model, training: Training, layers: int, *, first: bool, last: bool) -> Self:
        """Return those of a stage.

        Args:
            model: The model.
            training: How it is trained.
            layers: MoE layers of the stage.
            first: Whether it is the first stage, which has all layers without experts.
            last: Whether it is the last stage, which has the head.
        """
        part, (before, after) = model.replayed_part, model.outer_weights
        dense = part * first * model.dense_layers
        return cls(
            tuple(dense * training.dense_layer_s(model, direction) for direction in DIRECTIONS),
            part * last * sum(training.head_s(model, direction) for direction in DIRECTIONS),
            training.optimiser_s(model, layers, first * before + last * after),
        )

    def around(
        self, operations: Iterable[Operation], servers: int, *, updates: bool = True
    ) -> Iterator[Operation]:
        """Yield the operations of a stage's MoE layers with those outside of them.

        Args:
            operations: Operations of one pass or of both.
            servers: Servers that compute them.
            updates: Whether the optimiser follows the backward pass.
        """

        def compute(kind: str, beside: Operation, direction: str, seconds: float) -> list[Compute]:
            return [Compute(kind, direction, beside.layer, (seconds,) * servers)] * (seconds > 0)

        forward, backward = DIRECTIONS
        before: Operation | None = None
        for operation in operations:
            if before is None and operation.direction == forward:
                yield from compute("dense", operation, forward, self.dense_s[0])
            if operation.direction == backward and (before is None or before.direction == forward):
                yield from compute("head", operation, backward, self.head_s)
            yield operation
            before = operation
        if before is not None and before.direction == backward:
            yield from compute("dense", before, backward, self.dense_s[1])
            yield from compute("optimiser", before, backward, updates * self.optimiser_s)
