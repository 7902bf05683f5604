"""The communication kernels of DeepSeek's published training profile, as one GPU ran them.

The file is CSV: `kernel,start_us,dur_us,stream`. The kernels are those of DeepEP: `dispatch` and
`combine` are all-to-alls, `notify` kernels exchange counts and are barriers here, and others
compute. DeepEP's template gives the number of nodes (`dispatch<false, 8, ...>`), of 8 GPUs each.

The file has no sizes. They are those of the profile's job: 4,096 tokens a GPU, the layers of
DeepSeek-V3, and balanced routing. All ranks run alike; the gaps between kernels are computation.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moefabric.config.model import preset
from moefabric.core.errors import TraceError
from moefabric.traces.files import read_text
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node

_HEADER: Final = ("kernel", "start_us", "dur_us", "stream")
_NODES: Final = re.compile(r"dispatch<\s*\w+\s*,\s*(\d{1,4})\s*,")
_NODE_GPUS: Final = 8
_TOKENS: Final = 4096
"""Tokens of a GPU in the published profile (github.com/deepseek-ai/profile-data)."""
_MODEL: Final = "deepseek-r1"
MAX_KERNELS: Final = 20_000
MAX_NODES: Final = 256
_US: Final = 1e6
"""Microseconds of a second."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    start_us: float
    end_us: float
    stream: int


class DeepseekKernelsReader:
    """Reads the kernels of DeepSeek's profile."""

    name = "deepseek-kernels"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether the first line names the columns of kernels."""
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
        return tuple(word.strip() for word in first.split(",")) == _HEADER

    def read(self, path: Path) -> ExecutionGraph:
        """Read the kernels as the graph of all ranks."""
        return kernels_graph(_kernels(path), path)


def _kernels(path: Path) -> list[_Kernel]:
    rows = list(csv.reader(read_text(path).splitlines()))[1:]
    if len(rows) > MAX_KERNELS:
        raise TraceError(path, "", f"{len(rows)} kernels are more than {MAX_KERNELS}")
    kernels = []
    for line, row in enumerate(rows, start=2):
        try:
            name, start, duration, stream = row
            kernel = _Kernel(name, float(start), float(start) + float(duration), int(stream))
        except ValueError as error:
            message = f"kernel, start, duration and stream are needed: {error}"
            raise TraceError(path, f"line {line}", message) from error
        if not 0 <= kernel.start_us <= kernel.end_us < float("inf"):
            raise TraceError(path, f"line {line}", "start and duration must not be negative")
        kernels.append(kernel)
    return sorted(kernels, key=lambda kernel: kernel.start_us)


def kernels_graph(kernels: Sequence[_Kernel], path: Path) -> ExecutionGraph:
    """Return the graph of all ranks, each of which runs the kernels.

    Raises:
        TraceError: If no kernel tells the number of nodes, or they tell different ones.
    """
    counts = {int(match[1]) for kernel in kernels if (match := _NODES.search(kernel.name))}
    if len(counts) != 1:
        numbers = ", ".join(map(str, sorted(counts))) or "none"
        raise TraceError(path, "", f"one number of nodes is needed in dispatch<...>, not {numbers}")
    nodes = counts.pop()
    if not 1 <= nodes <= MAX_NODES:
        raise TraceError(path, "", f"{nodes} nodes are not 1 to {MAX_NODES}")
    ranks, model = nodes * _NODE_GPUS, preset(_MODEL)
    widths = {"dispatch": model.dispatch_token_bytes, "combine": model.combine_token_bytes}
    # The bytes of a rank's all-to-all are a multiple of the number of ranks.
    sizes = {
        kind: round(_TOKENS * model.top_k * width / ranks) * ranks for kind, width in widths.items()
    }
    operations = tuple(_operations(kernels, sizes))
    notes = (
        f"{ranks} ranks of {nodes} nodes run the kernels of one GPU.",
        (
            f"Sizes are not in the file: a rank dispatches {_TOKENS} tokens to "
            f"{model.top_k} experts each, {sizes['dispatch']} bytes, and combines "
            f"{sizes['combine']} bytes, evenly."
        ),
        "Gaps between kernels are computation; notify kernels are barriers.",
    )
    return ExecutionGraph(dict.fromkeys(range(ranks), operations), name=path.stem, notes=notes)


def _operations(kernels: Sequence[_Kernel], sizes: Mapping[str, int]) -> Iterator[Node]:
    number, last_us = 0, kernels[0].start_us
    for kernel in kernels:
        if kernel.start_us > last_us:
            gap_s = (kernel.start_us - last_us) / _US
            yield Node(number, "compute", "gap", duration_s=gap_s, stream=0)
            number += 1
        last_us = max(last_us, kernel.end_us)
        kind = next((name for name in sizes if f"::{name}" in kernel.name), "")
        node = Node(number, "compute", kernel.name, stream=0)
        if kind:
            yield replace(node, kind="collective", size=sizes[kind], collective="all_to_all")
        elif "notify" in kernel.name:
            yield replace(node, kind="collective", collective="barrier")
        else:
            yield replace(node, duration_s=(kernel.end_us - kernel.start_us) / _US)
        number += 1
