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
from moefabric.traces.formats import TraceReader
from moefabric.traces.pytorch_execution import PytorchExecutionReader
from moefabric.traces.pytorch_profile import PytorchProfileReader
from tests.support.paths import REPOSITORY

WRONG: tuple[Any, ...] = (
    None, True, -1, 1 << 40, 1 << 70, -(1 << 70), 1.5, -1e300, float("nan"), float("inf"), "", "x",
    "[1]", "[[", [], [[]], [None], [-1], ["a", 1], {}, {"ranks": [0]}, {"name": 3},
    '[{"pg_name":1,"ranks":[-5]}]', '[{"pg_name":"0","ranks":[1099511627776]}]', "\ud800", "send",
    "wait", "1" * 30, [1, 2, 3, 4, 5, "cuda:0"],
)  # fmt: skip

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
EXECUTION = json.loads((REPOSITORY / "tests/fuzz/corpus/traces-pytorch-et/rank.json").read_text())


@pytest.mark.parametrize(
    ("reader", "document"),
    [(PytorchExecutionReader(), EXECUTION), (PytorchProfileReader(), PROFILE)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_wrong_values_are_read_or_are_faults(
    tmp_path: Path, reader: TraceReader, document: Any
) -> None:
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
