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
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

from moefabric.core.errors import TraceError
from moefabric.core.units import size_text
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
_SIZES: Final = ("model_parallel_NPU_group", "ep", "pp")
"""Keys of the numbers of GPUs in a tensor-parallel group, groups in an EP group, and stages."""
_LISTS: Final = ("checkpoints", "checkpoint_initiates")
"""Keys of lists of layers."""
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
    """Layer: its forward pass, and the gradients of its input and of its weights."""

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

    @property
    def replicas(self) -> int:
        """Replicas of the experts in a graph."""
        return min(2, self.dp_ep)


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


class _Parser:
    def __init__(self, lines: Sequence[str], source: object) -> None:
        self.lines, self.source = lines, source

    def workload(self) -> SimaiWorkload:
        if len(self.lines) < 2:
            raise TraceError(self.source, "", "the lines of parallelism and layers are missing")
        words = self.lines[0].replace(":", ": ").split()
        if not words or words[0] not in _POLICIES:
            raise self._error(1, f"the policy is not one of {', '.join(_POLICIES)}")
        numbers, lists = self._header(words[1:])
        tp, ep, pp = (self._at_least_1(numbers, key) for key in _SIZES)
        gpus = numbers.get("all_gpus") or tp * ep * pp
        if gpus % (tp * pp) or (gpus // (tp * pp)) % ep:
            message = f"{gpus} GPUs are not filled by groups of {tp} (tensor), {pp} (pipeline) and "
            raise self._error(1, f"{message}{ep} (expert)")
        layers = tuple(self._layers())
        checkpoints, recomputed = (lists.get(key, frozenset()) for key in _LISTS)
        if wrong := [layer for layer in sorted(checkpoints | recomputed) if layer >= len(layers)]:
            raise self._error(1, f"checkpoints name layer {wrong[0]} of {len(layers)}")
        for layer in recomputed:
            if not any(checkpoint <= layer for checkpoint in checkpoints):
                raise self._error(1, f"layer {layer} has no checkpoint before it")
        rest = layers, checkpoints, recomputed, numbers.get("pp_comm", 0)
        return SimaiWorkload(gpus, tp, ep, pp, *rest)

    def _header(self, words: Sequence[str]) -> tuple[dict[str, int], dict[str, frozenset[int]]]:
        """Return the numbers of the first line by key, and the lists of checkpoints."""
        numbers: dict[str, int] = {}
        lists: dict[str, frozenset[int]] = {}
        rest = iter(words)
        for word in rest:
            key = word.rstrip(":")
            numbers[key] = count = self._number(1, key, next(rest, ""))
            if key in _LISTS:
                members = [*islice(rest, count)]
                if len(members) < count:
                    raise self._error(1, f"{key} announces {count} layers, {len(members)} follow")
                lists[key] = frozenset(self._number(1, key, member) for member in members)
        return numbers, lists

    def _at_least_1(self, numbers: dict[str, int], key: str) -> int:
        if key not in numbers and key == _SIZES[0]:
            raise self._error(1, f"{key} is missing")
        if not 1 <= numbers.get(key, 1) <= 1 << 20:
            raise self._error(1, f"{key} is {numbers[key]}, not 1 to {1 << 20}")
        return numbers.get(key, 1)

    def _layers(self) -> Iterator[Layer]:
        announced = self._number(2, "the number of layers", self.lines[1].strip())
        rows = [(n, line.split()) for n, line in enumerate(self.lines[2:], 3) if line.strip()]
        if len(rows) != announced:
            raise self._error(2, f"{announced} layers are announced, {len(rows)} given")
        if not 1 <= announced <= MAX_LAYERS:
            raise self._error(2, f"{announced} layers are not 1 to {MAX_LAYERS}")
        for line, words in rows:
            if not _COLUMNS - 1 <= len(words) <= _COLUMNS + 1:
                raise self._error(line, f"{len(words)} columns are not {_COLUMNS}")
            forward, input_gradient, weight_gradient = (
                self._pass(line, words[column : column + 3], default)
                for column, default in ((2, "tp"), (5, "tp"), (8, "dp"))
            )
            yield Layer(words[0], forward, input_gradient, weight_gradient)

    def _pass(self, line: int, words: Sequence[str], default: str) -> Pass:
        duration, collective, size = words
        compute_ns, size_bytes = (self._number(line, "a column", word) for word in (duration, size))
        if collective == "NONE":
            return Pass(compute_ns)
        kind, _, suffix = collective.partition("_")
        if kind not in _COLLECTIVES or (suffix and suffix not in _GROUPS):
            known = f"{', '.join(_COLLECTIVES)} or NONE, with _EP or _DP_EP for other groups"
            raise self._error(line, f"{collective} is not {known}")
        return Pass(compute_ns, _COLLECTIVES[kind], _GROUPS.get(suffix, default), size_bytes)

    def _number(self, line: int, what: str, word: str) -> int:
        if not re.fullmatch(r"\d{1,16}", word):
            shown = repr(word[:40]) if word else "'nothing'"
            raise self._error(line, f"{what} is {shown}, not a whole number")
        if int(word) > MAX_SIZE:
            raise self._error(line, f"{what} is {word}, more than {MAX_SIZE}")
        return int(word)

    def _error(self, line: int, reason: str) -> TraceError:
        return TraceError(self.source, f"line {line}", reason)


def simai_graph(workload: SimaiWorkload, name: str = "") -> ExecutionGraph:
    """Return the graph of one expert-parallel group of a workload, or of two that are replicas.

    Ranks are numbered as Megatron does: tensor-parallel first, then expert-parallel, then replicas.
    The group stands for all others: its data-parallel collectives grow by as much as keeps the
    bytes that a rank sends. Sizes of all-gathers are those of the result, as AICB gives them.

    Args:
        name: Name of the graph.

    Raises:
        TraceError: If the graph would have too many operations.
    """
    count = workload.tp * workload.ep * workload.replicas
    nodes = tuple(_nodes(workload))
    if len(nodes) * count > MAX_OPERATIONS:
        message = f"{len(nodes)} operations on each of {count} ranks are more than {MAX_OPERATIONS}"
        raise TraceError(name, "", message)

    @cache
    def member(number: int, group: str) -> Node:
        return replace(nodes[number], group=group)

    groups: dict[str, tuple[int, ...]] = {}
    ranks = {}
    for rank in range(count):
        groups_of = _groups_of(workload, rank)
        groups |= dict(groups_of.values())
        ranks[rank] = tuple(
            member(node.number, groups_of[node.group][0]) if node.kind == "collective" else node
            for node in nodes
        )
    return ExecutionGraph(ranks, groups, name, tuple(_notes(workload, count)))


def _groups_of(workload: SimaiWorkload, rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name and the ranks of a rank's group of each kind."""
    tp, block = workload.tp, workload.tp * workload.ep
    count, first = block * workload.replicas, rank // block * block
    lane, place = rank % tp, rank % block
    return {
        "tp": (f"tp{rank // tp}", tuple(range(rank - lane, rank - lane + tp))),
        "ep": (f"ep{rank // block * tp + lane}", tuple(range(first + lane, first + block, tp))),
        "dp_ep": (f"dp_ep{place}", tuple(range(place, count, block))),
        "dp": (f"dp{lane}", tuple(range(lane, count, tp))),
    }


def _nodes(workload: SimaiWorkload) -> Iterator[Node]:
    """Yield the operations of every rank, with kinds of groups instead of groups."""
    number, last = 0, -1  # `last` is that of the last operation of the layers
    for name, part, stream in _passes(workload):
        if part.compute_ns:
            seconds = part.compute_ns / _NS
            yield Node(number, "compute", name, duration_s=seconds, stream=_MODEL)
            number, last = number + 1, number
        if size := _size(workload, part):
            after = (last,) if stream == _BACKGROUND and last >= 0 else ()
            yield Node(
                number, "collective", name, after, size=size, collective=part.collective,
                group=part.group, stream=stream,
            )  # fmt: skip
            last = number if stream == _MODEL else last
            number += 1


def _passes(workload: SimaiWorkload) -> Iterator[tuple[str, Pass, int]]:
    """Yield the name, the pass and the stream of its collective, in the order of an iteration."""
    layers = workload.layers
    for layer in layers:
        yield layer.name, layer.forward, _MODEL
    for index, layer in reversed([*enumerate(layers)]):
        if index in workload.recomputed:
            first = max(checkpoint for checkpoint in workload.checkpoints if checkpoint <= index)
            for again in layers[first : index + 1]:
                yield f"{again.name} again", again.forward, _MODEL
        yield f"{layer.name} input gradient", layer.input_gradient, _MODEL
        yield f"{layer.name} weight gradient", layer.weight_gradient, _BACKGROUND


def _size(workload: SimaiWorkload, part: Pass) -> int:
    """Return the size of an operation; 0 without a collective, or if its group has one rank."""
    if part.collective is None:
        return 0
    job, graph = {
        "tp": (workload.tp, workload.tp),
        "ep": (workload.ep, workload.ep),
        "dp_ep": (workload.dp_ep, workload.replicas),
        "dp": (workload.dp, workload.ep * workload.replicas),
    }[part.group]
    if graph == 1:
        return 0
    size = part.size // job if part.collective == "all_gather" else part.size
    return folded_size(part.collective, size, job, graph)


def _notes(job: SimaiWorkload, count: int) -> Iterator[str]:
    if count < job.gpus:
        yield (
            f"{job.gpus} GPUs (tensor {job.tp}, expert {job.ep}, pipeline {job.pp}, data "
            f"{job.dp}) are folded onto {count} ranks: {job.replicas} expert-parallel "
            "group(s) of one pipeline stage stand for all."
        )
    if job.dp > job.ep * job.replicas:
        yield (
            f"Data-parallel collectives of {job.dp} ranks (experts: {job.dp_ep}) run among "
            f"{job.ep * job.replicas} (experts: {job.replicas}); each rank sends as many "
            "bytes as before."
        )
    if job.pp > 1:
        yield (
            f"The pipeline of {job.pp} stages is left out, with its messages of "
            f"{size_text(job.pp_bytes)} a micro-batch."
        )
    if any(
        part.collective is not None and not _size(job, part)
        for layer in job.layers
        for part in (layer.forward, layer.input_gradient, layer.weight_gradient)
    ):
        yield "Collectives of 0 bytes, and those of groups of one rank, are left out."
