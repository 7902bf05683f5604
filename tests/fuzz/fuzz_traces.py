"""Traces, by each reader."""

from contextlib import suppress
from functools import partial

from moefabric.config.plugins import TRACE_READERS, plugin_names
from moefabric.core.errors import SpecError, TraceError
from moefabric.traces.formats import TraceReader, named_reader
from tests.support.fuzzing import FuzzTarget, input_file


def read_trace_file(reader: TraceReader, data: bytes) -> None:
    """Read the input as the only file of a trace."""
    with input_file(data, "") as file, suppress(TraceError, SpecError):
        reader.matches(file, data)
        reader.read(file)


TARGETS = tuple(
    FuzzTarget(f"traces-{name}", partial(read_trace_file, named_reader(name)))
    for name in plugin_names(TRACE_READERS)
    if name != "routes-parquet"  # pyarrow reads it, where that is installed
)
