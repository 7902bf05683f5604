"""SimAI's workloads, as AICB writes them: what one GPU computes and communicates, layer by layer.

The first line has the parallelism, the second the number of layers. A layer has twelve columns:
name, dependency (unused), then for the forward pass, the gradient of the input and that of the
weights the computation in nanoseconds, the collective and its bytes, and the time of an update.

An iteration runs forward through all layers and then backward: the gradient of the input, which
waits for its collective, and that of the weights, whose collective doesn't hold up the layers
before (`Workload::iterate_hybrid_parallel_Transformer_fwd_in_bckwd` of SimAI). Layers that
checkpoints name are computed again before their backward pass.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moefabric.core.errors import TraceError
from moefabric.traces.files import read_text
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node
from moefabric.workload.graphs.folding import folded_size

_POLICIES: Final = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")
_COLUMNS: Final = 12
_COLLECTIVES: Final[dict[str, CollectiveKind]] = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
_GROUPS: Final = {"EP": "ep", "DP_EP": "dp_ep"}
_MODEL, _BACKGROUND = 0, 1
"""Streams: of the layers, and of the collectives of weights."""
MAX_LAYERS: Final = 200_000
MAX_OPERATIONS: Final = 4_000_000
MAX_SIZE: Final = 1 << 50
_NS: Final = 1e9
"""Nanoseconds of a second."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Computation in nanoseconds, and the collective after it: its kind, group and bytes."""

    compute_ns: int
    collective: CollectiveKind | None = None
    group: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its forward pass, and the gradients of its input and of its weights."""

    name: str
    forward: Pass
    input_gradient: Pass
    weight_gradient: Pass


@dataclass(frozen=True)
class SimaiWorkload:
    """A workload.

    Attributes:
        gpus: GPUs of the job.
        tp: GPUs of a tensor-parallel group.
        ep: Tensor-parallel groups of an expert-parallel group.
        pp: Pipeline stages.
        micro_batches: Micro-batches of an iteration.
        layers: The layers of one GPU, those of all its micro-batches one after another.
        checkpoints: Layers whose activations are kept.
        recomputed: Layers before whose backward pass the layers from the checkpoint before them
            run forward again.
        pp_bytes: Bytes of a micro-batch from a stage to the next one.
    """

    gpus: int
    tp: int
    ep: int
    pp: int
    micro_batches: int
    layers: tuple[Layer, ...]
    checkpoints: frozenset[int] = frozenset()
    recomputed: frozenset[int] = frozenset()
    pp_bytes: int = 0

    @property
    def dp(self) -> int:
        """Replicas of the tensor-parallel groups of a stage."""
        return self.gpus // (self.tp * self.pp)

    @property
    def dp_ep(self) -> int:
        """Replicas of the experts of a stage."""
        return self.dp // self.ep


class SimaiReader:
    """Reads SimAI's workloads."""

    name = "simai"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the file begins with a policy of parallelism."""
        words = head[:200].split(maxsplit=1)
        return bool(words) and words[0].decode("utf-8", "replace") in _POLICIES

    def read(self, path: Path) -> ExecutionGraph:
        """Read a workload; see `simai_graph`."""
        return simai_graph(parse_simai(read_text(path), path), path.name.split(".")[0])


def parse_simai(text: str, source: object = "workload") -> SimaiWorkload:
    """Return the content of a workload.

    Args:
        text: The text of the file.
        source: Name of the file, for errors.

    Raises:
        TraceError: If a line is wrong.
    """
    return _Parser(text.splitlines(), source).workload()


@dataclass
class _Parser:
    lines: Sequence[str]
    source: object
    _marks: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

    def workload(self) -> SimaiWorkload:
        if len(self.lines) < 2:
            raise TraceError(self.source, "", "the lines of parallelism and layers are missing")
        words = self.lines[0].replace(":", ": ").split()
        if not words or words[0] not in _POLICIES:
            raise self._error(1, f"the policy is not one of {', '.join(_POLICIES)}")
        numbers = self._header(words[1:])
        tp, ep, pp = (self._at_least_1(numbers, key) for key in _SIZES)
        gpus = numbers.get("all_gpus") or tp * ep * pp
        if gpus % (tp * pp) or (gpus // (tp * pp)) % ep:
            message = f"{gpus} GPUs are not filled by groups of {tp} (tensor), {pp} (pipeline) and "
            raise self._error(1, f"{message}{ep} (expert)")
        layers = tuple(self._layers())
        marks = self._marks
        if wrong := [layer for layer in sorted(marks[0] | marks[1]) if layer >= len(layers)]:
            raise self._error(1, f"checkpoints name layer {wrong[0]} of {len(layers)}")
        for layer in marks[1]:
            if not any(checkpoint <= layer for checkpoint in marks[0]):
                raise self._error(1, f"layer {layer} has no checkpoint before it")
        rest = numbers.get("ga") or 1, layers, *marks, numbers.get("pp_comm", 0)
        return SimaiWorkload(gpus, tp, ep, pp, *rest)

    def _header(self, words: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the first line by key; those of checkpoints are lists."""
        numbers: dict[str, int] = {}
        lists: dict[str, frozenset[int]] = {}
        position = 0
        while position < len(words):
            key = words[position].rstrip(":")
            count = self._number(1, key, words[position + 1 : position + 2])
            position += 2
            if key in {"checkpoints", "checkpoint_initiates"}:
                members = words[position : position + count]
                if len(members) < count:
                    raise self._error(1, f"{key} announces {count} layers, {len(members)} follow")
                lists[key] = frozenset(self._number(1, key, [word]) for word in members)
                position += count
            else:
                numbers[key] = count
        none: frozenset[int] = frozenset()
        self._marks = lists.get("checkpoints", none), lists.get("checkpoint_initiates", none)
        return numbers

    def _at_least_1(self, numbers: dict[str, int], key: str) -> int:
        if key not in numbers and key == _SIZES[0]:
            raise self._error(1, f"{key} is missing")
        if not 1 <= numbers.get(key, 1) <= 1 << 20:
            raise self._error(1, f"{key} is {numbers[key]}, not 1 to {1 << 20}")
        return numbers.get(key, 1)

    def _layers(self) -> Iterator[Layer]:
        announced = self._number(2, "the number of layers", self.lines[1].split())
        rows = [(n, line.split()) for n, line in enumerate(self.lines[2:], 3) if line.strip()]
        if len(rows) != announced:
            raise self._error(2, f"{announced} layers are announced, {len(rows)} given")
        if not 1 <= announced <= MAX_LAYERS:
            raise self._error(2, f"{announced} layers are not 1 to {MAX_LAYERS}")
        for line, words in rows:
            if not _COLUMNS - 1 <= len(words) <= _COLUMNS + 1:
                raise self._error(line, f"{len(words)} columns are not {_COLUMNS}")
            passes = [
                self._pass(line, words[column : column + 3], default)
                for column, default in ((2, "tp"), (5, "tp"), (8, "dp"))
            ]
            yield Layer(words[0], *passes)

    def _pass(self, line: int, words: Sequence[str], default: str) -> Pass:
        compute, size = (self._number(line, "a column", [words[n]]) for n in (0, 2))
        if words[1] == "NONE":
            return Pass(compute)
        kind, _, suffix = words[1].partition("_")
        if kind not in _COLLECTIVES or (suffix and suffix not in _GROUPS):
            known = f"{', '.join(_COLLECTIVES)} or NONE, with _EP or _DP_EP for other groups"
            raise self._error(line, f"{words[1]} is not {known}")
        return Pass(compute, _COLLECTIVES[kind], _GROUPS.get(suffix, default), size)

    def _number(self, line: int, what: str, words: Sequence[str]) -> int:
        if len(words) != 1 or not re.fullmatch(r"\d{1,16}", words[0]):
            word = words[0][:40] if words else "nothing"
            raise self._error(line, f"{what} is {word!r}, not a whole number")
        if int(words[0]) > MAX_SIZE:
            raise self._error(line, f"{what} is {words[0]}, more than {MAX_SIZE}")
        return int(words[0])

    def _error(self, line: int, reason: str) -> TraceError:
        return TraceError(self.source, f"line {line}", reason)


_SIZES: Final = ("model_parallel_NPU_group", "ep", "pp")
"""Keys of the numbers of GPUs in a tensor-parallel group, groups in an EP group, and stages."""


def simai_graph(workload: SimaiWorkload, name: str = "") -> ExecutionGraph:
    """Return the graph of one expert-parallel group of a workload, or of two that are replicas.

    Ranks are numbered as Megatron does: tensor-parallel first, then expert-parallel, then replicas.
    The group stands for all others: its data-parallel collectives grow by as much as keeps the
    bytes that a rank sends. Sizes of all-gathers are those of the result, as AICB gives them.

    Args:
        workload: The workload.
        name: Name of the graph.

    Raises:
        TraceError: If the graph would have too many operations.
    """
    replicas = min(2, workload.dp_ep)
    count = workload.tp * workload.ep * replicas
    builder = _GraphBuilder(workload, replicas)
    nodes = tuple(builder.nodes())
    if len(nodes) * count > MAX_OPERATIONS:
        message = f"{len(nodes)} operations on each of {count} ranks are more than {MAX_OPERATIONS}"
        raise TraceError(name, "", message)
    groups: dict[str, tuple[int, ...]] = {}
    tables = {rank: builder.groups_of(rank) for rank in range(count)}
    for table in tables.values():
        groups |= dict(table.values())
    ranks = {
        rank: tuple(builder.on_rank(node, tables[rank]) for node in nodes) for rank in range(count)
    }
    return ExecutionGraph(ranks, groups, name, tuple(builder.notes(count)))


@dataclass
class _GraphBuilder:
    workload: SimaiWorkload
    replicas: int
    _next: int = field(default=0, init=False)
    _last: int = field(default=-1, init=False)
    """Number of the last operation of the layers."""

    def groups_of(self, rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the name and the ranks of a rank's group of each kind."""
        tp, ep, replicas = self.workload.tp, self.workload.ep, self.replicas
        lane, place, replica = rank % tp, rank // tp % ep, rank // (tp * ep)
        block = rank - lane
        experts = range(lane + replica * tp * ep, (replica + 1) * tp * ep, tp)
        copies = range(rank % (tp * ep), tp * ep * replicas, tp * ep)
        all_lanes = range(lane, tp * ep * replicas, tp)
        return {
            "tp": (f"tp{block // tp}", tuple(range(block, block + tp))),
            "ep": (f"ep{replica * tp + lane}", tuple(experts)),
            "dp_ep": (f"dp_ep{place * tp + lane}", tuple(copies)),
            "dp": (f"dp{lane}", tuple(all_lanes)),
        }

    def nodes(self) -> Iterator[Node]:
        """Yield the operations of every rank, with kinds of groups instead of groups."""
        layers = self.workload.layers
        for layer in layers:
            yield from self._run(layer.name, layer.forward)
        for index in range(len(layers) - 1, -1, -1):
            if index in self.workload.recomputed:
                first = max(one for one in self.workload.checkpoints if one <= index)
                for layer in layers[first : index + 1]:
                    yield from self._run(f"{layer.name} again", layer.forward)
            layer = layers[index]
            yield from self._run(f"{layer.name} input gradient", layer.input_gradient)
            yield from self._run(
                f"{layer.name} weight gradient", layer.weight_gradient, _BACKGROUND
            )

    def _run(self, name: str, part: Pass, stream: int = _MODEL) -> Iterator[Node]:
        if part.compute_ns:
            self._last = self._next
            seconds = part.compute_ns / _NS
            yield Node(self._next, "compute", name, duration_s=seconds, stream=_MODEL)
            self._next += 1
        if part.collective is None or not (size := self._size(part)):
            return
        after = (self._last,) if stream == _BACKGROUND and self._last >= 0 else ()
        yield Node(
            self._next, "collective", name, after, size=size, collective=part.collective,
            group=part.group, stream=stream,
        )  # fmt: skip
        if stream == _MODEL:
            self._last = self._next
        self._next += 1

    def _size(self, part: Pass) -> int:
        """Return the size of a collective's operation; 0 if its group has one rank."""
        job, graph = {
            "tp": (self.workload.tp, self.workload.tp),
            "ep": (self.workload.ep, self.workload.ep),
            "dp_ep": (self.workload.dp_ep, self.replicas),
            "dp": (self.workload.dp, self.workload.ep * self.replicas),
        }[part.group]
        if graph == 1 or part.collective is None:
            return 0
        size = part.size // job if part.collective == "all_gather" else part.size
        return folded_size(part.collective, size, job, graph)

    def on_rank(self, node: Node, groups: dict[str, tuple[str, tuple[int, ...]]]) -> Node:
        if node.kind != "collective":
            return node
        return Node(
            node.number, "collective", node.name, node.after, size=node.size,
            collective=node.collective, group=groups[node.group][0], stream=node.stream,
        )  # fmt: skip

    def notes(self, count: int) -> Iterator[str]:
        job = self.workload
        if count < job.gpus:
            yield (
                f"{job.gpus} GPUs (tensor {job.tp}, expert {job.ep}, pipeline {job.pp}, data "
                f"{job.dp}) are folded onto {count} ranks: {self.replicas} expert-parallel "
                "group(s) of one pipeline stage stand for all."
            )
        if job.dp > job.ep * self.replicas:
            yield (
                f"Data-parallel collectives of {job.dp} ranks (experts: {job.dp_ep}) run among "
                f"{job.ep * self.replicas} (experts: {self.replicas}); each rank sends as many "
                "bytes as before."
            )
        if job.pp > 1:
            yield (
                f"The pipeline of {job.pp} stages is left out, with its messages of "
                f"{job.pp_bytes} bytes a micro-batch."
            )
        if any(
            part.collective is not None and not self._size(part)
            for layer in job.layers
            for part in (layer.forward, layer.input_gradient, layer.weight_gradient)
        ):
            yield "Collectives of 0 bytes, and those of groups of one rank, are left out."
