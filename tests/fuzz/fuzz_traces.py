"""Traces, by each reader."""

import io
import warnings
import zipfile
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

from moefabric.config.plugins import TRACE_READERS, plugin_names
from moefabric.core.errors import SpecError, TraceError
from moefabric.traces.formats import TraceReader, named_reader
from moefabric.traces.gating_files import load_gating
from moefabric.traces.route_files import load_routes
from tests.support.fuzzing import FuzzTarget, input_file


def read_trace_file(reader: TraceReader, data: bytes) -> None:
    """Read the input as the only file of a trace."""
    with input_file(data, "") as file, suppress(TraceError, SpecError):
        reader.matches(file, data)
        reader.read(file)


def read_sealed_archive(data: bytes) -> None:
    """Read the input as an array of an archive, whose checksums are those of the input.

    The first byte chooses the array and its compression; header and contents follow.
    """
    kind, array = data[:1] or b"\0", data[1:]
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", zipfile.ZIP_DEFLATED if kind[0] & 1 else zipfile.ZIP_STORED
    ) as archive:
        chosen = ("counts.npy", "routes.npy", "scores.npy")[(kind[0] >> 1) % 3]
        other = "counts.npy" if kind[0] & 8 and chosen != "counts.npy" else "other.npy"
        for name in (chosen, other):
            archive.writestr(name, array)
    with warnings.catch_warnings(), input_file(packed.getvalue(), ".npz") as file:
        warnings.simplefilter("ignore")  # NumPy's, of headers of Python 2
        for load in (load_gating, load_routes):
            with suppress(TraceError, SpecError):
                load(file)


_HAS_ARROW = find_spec("pyarrow") is not None
TARGETS = (
    *(
        FuzzTarget(f"traces-{name}", partial(read_trace_file, named_reader(name)))
        for name in plugin_names(TRACE_READERS)
        if name != "routes-parquet" or _HAS_ARROW
    ),
    FuzzTarget("traces-gating-sealed", read_sealed_archive),
)
