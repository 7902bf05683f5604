"""The `train:` section of an experiment: a program that trains a small model on the fabric."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pydantic import Field

from moefabric.config.model import InputPath
from moefabric.config.section import InputError, Section, Text
from moefabric.workload.models.model import Model, Training

_ELEMENT_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_KEYS: Final = ("hidden", "sequence", "batch", "dtype", "checkpoint_every")
_NAMES: Final = ("iterations", "layers", "experts", "ranks", "seed", "checkpoint")
"""What `arguments` may name: keys of the section, and values besides."""
LOSS: Final = r"^step (?P<step>\d+) loss (?P<loss>\S+)"
"""Default of `loss`."""
NO_PROGRAM: Final = (
    "is missing: it names the program that trains, as in examples/train/prototype.yaml"
)
"""What is wrong with an experiment without this section that is to train."""


class TrainSpec(Section):
    """A program that trains, one process for each expert-parallel rank.

    Its all-to-alls stand for those of the experiment's model: bytes and computation are those of
    the full-size model. `arguments` may contain `{hidden}`, `{sequence}`, `{batch}`, `{dtype}`,
    `{checkpoint_every}`, `{iterations}`, `{layers}`, `{experts}`, `{ranks}`, `{seed}` and
    `{checkpoint}`, a path of each rank.
    """

    program: InputPath
    """Python program. It calls `torch.distributed.init_process_group("moefabric")`."""
    arguments: list[str] = Field(default_factory=list)
    """Its command line."""
    hidden: int = Field(ge=1, le=1 << 20)
    """Width of a token in the program."""
    sequence: int = Field(ge=1, le=1 << 20)
    """Tokens of a sample in the program."""
    batch: int = Field(ge=1, le=1 << 20)
    """Samples of a rank in the program's iteration."""
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    """Type of the numbers that ranks exchange."""
    compute: Literal["modelled", "wall"] = "modelled"
    """Time of computation between all-to-alls: `modelled` is that of the full-size model on its
    GPUs, `wall` is what the program's processes need here."""
    loss: Text = LOSS
    """Regular expression of the lines in which rank 0 prints its loss, with the groups `step`,
    which counts from 0, and `loss`."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Iterations between checkpoints, if the program writes any. If a rank ends early, all ranks
    start again from the last checkpoint. 0: the run ends."""
    restarts: int = Field(default=3, ge=0, le=100)
    """Number of times that ranks start again. An error of the program that comes back before
    another iteration has ended ends the run at once."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Additional variables of the program's environment."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the program."""
        return self.hidden * _ELEMENT_BYTES[self.dtype]

    @property
    def rank_tokens(self) -> int:
        """Tokens of a rank in an iteration of the program."""
        return self.sequence * self.batch

    def byte_scale(self, model: Model, training: Training) -> float:
        """Return how many bytes of the full-size model a byte of the program stands for."""
        full = training.rank_tokens * training.dispatch_token_bytes(model)
        return full / (self.rank_tokens * self.token_bytes)

    def command(self, values: Mapping[str, object]) -> list[str]:
        """Return the arguments with the names in braces replaced.

        Args:
            values: Values that are not keys of this section.
        """
        known = {**values, **self.model_dump(include={*_KEYS})}
        return [argument.format_map(known) for argument in self.arguments]

    def errors(self, model: Model, training: Training) -> Iterator[InputError]:
        """Yield the contradictions of the section."""
        try:
            groups = re.compile(self.loss).groupindex
        except re.error as error:
            yield "train.loss", f"{self.loss!r} is not a regular expression: {error}"
        else:
            if not {"step", "loss"} <= groups.keys():
                yield "train.loss", "the groups (?P<step>...) and (?P<loss>...) are needed"
        values = {**dict.fromkeys((*_KEYS, *_NAMES), 1), "dtype": "", "checkpoint": ""}
        for number, argument in enumerate(self.arguments):
            place = f"train.arguments[{number}]"
            try:
                argument.format_map(values)
            except (KeyError, IndexError) as error:
                known = ", ".join(values)
                yield place, f"{argument!r} names an unknown value: {error} is none of {known}"
            except ValueError as error:
                yield place, f"{argument!r} can't be filled in: {error}"
        if self.byte_scale(model, training) < 1:
            yield "train.hidden", "the program's tokens have more bytes than the model's"
        if training.combine_ratio(model) != 1.0:
            message = "a program that trains has tokens of one size: leave payloads out"
            yield "training.combine_payload", message
        if model.node_limit:
            yield "model", "models that limit the nodes of a token can't be trained: choose another"
