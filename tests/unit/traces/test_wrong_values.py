"""JSON traces with values of other types and sizes are read, or are faults of the file."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.chakra import ChakraJsonReader
from moefabric.traces.formats import TraceReader
from moefabric.traces.param_basic import ParamBasicReader
from moefabric.traces.pytorch_execution import PytorchExecutionReader
from moefabric.traces.pytorch_profile import PytorchProfileReader
from moefabric.traces.pytorch_writer import PytorchExecutionWriter
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

WRONG: tuple[Any, ...] = (
    None, True, -1, 1 << 40, 1 << 70, -(1 << 70), 1.5, -1e300, float("nan"), float("inf"), "", "x",
    "[1]", "[[", [], [[]], [None], [-1], ["a", 1], {}, {"ranks": [0]}, {"name": 3},
    '[{"pg_name":1,"ranks":[-5]}]', '[{"pg_name":"0","ranks":[1099511627776]}]', "\ud800", "send",
    "wait", "1" * 30, [1, 2, 3, 4, 5, "cuda:0"],
)  # fmt: skip

CHAKRA = {
    "workload_graph": [
        {"Id": 0, "NodeType": 7, "comm_type": 6, "comm_size": 64, "data_deps": [], "runtime": 3},
        {"Id": 1, "NodeType": 5, "comm_size": 8, "comm_src": 0, "comm_dst": 1, "data_deps": [0]},
    ]
}
PROFILE_KERNEL = {
    "stream": 9, "Collective name": "all_to_allv", "dtype": "Float", "In msg nelems": 8,
    "In split size": "[4, 4]", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    "Group size": 2,
}  # fmt: skip
PROFILE = {
    "traceEvents": [
        {"cat": "kernel", "name": "gemm", "ts": 0, "dur": 5, "args": {"stream": 7}},
        {"cat": "kernel", "name": "ncclDevKernel", "ts": 5, "dur": 5, "args": PROFILE_KERNEL},
    ]
}
BASIC = [
    {
        "comms": "all_to_allv", "req": 0, "startTime_ns": 0, "world_size": 2, "pg_id": 1,
        "in_msg_size": 8, "dtype": "Float", "in_split": [4, 4], "global_ranks": [0, 1],
    },
    {"comms": "wait", "req": 0, "pg_id": 1},
    {"compute": "gemm"},
    {"comms": "scatter", "out_msg_size": 3, "dtype": "Int", "pg_id": 1, "root": 1},
]  # fmt: skip


def execution(folder: Path) -> Any:
    nodes = (
        Node(0, "collective", collective="all_to_all", size=3, splits=(3,), group="ep"),
        Node(1, "collective", collective="broadcast", size=8, group=WORLD, after=(0,)),
        Node(2, "send", peer=0, size=1),
        Node(3, "receive", peer=0, size=1),
        Node(4, "compute", duration_s=1e-3, after=(2, 3)),
    )
    PytorchExecutionWriter().write(ExecutionGraph({0: nodes}, {"ep": (0,)}), folder)
    return json.loads((folder / "rank-0.json").read_text())


@pytest.mark.parametrize(
    ("reader", "document"),
    [
        (ChakraJsonReader(), CHAKRA),
        (PytorchExecutionReader(), None),
        (PytorchProfileReader(), PROFILE),
        (ParamBasicReader(), BASIC),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_wrong_values_are_read_or_are_faults(
    tmp_path: Path, reader: TraceReader, document: Any
) -> None:
    document = execution(tmp_path / "program") if document is None else document
    random, file, faults = Random(3), tmp_path / "t.0.json", 0
    places = [place for place in places_in(document) if place]
    for _ in range(400):
        changed = copy.deepcopy(document)
        for _ in range(random.randint(1, 3)):
            replace_at(changed, random.choice(places), random.choice(WRONG))
        file.write_text(json.dumps(changed))
        with suppress(TraceError):
            reader.read(file)
            continue
        faults += 1
    assert 20 < faults < 400


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places_in(one, (*place, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places_in(one, (*place, index))


def replace_at(value: Any, place: tuple[Any, ...], wrong: Any) -> None:
    # An earlier change may have taken the place away.
    with suppress(KeyError, IndexError, TypeError):
        for step in place[:-1]:
            value = value[step]
        value[place[-1]] = copy.deepcopy(wrong)
