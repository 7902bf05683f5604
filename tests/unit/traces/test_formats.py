"""A trace's reader is chosen by the content."""

from pathlib import Path

import pytest

from moefabric.config.plugins import TRACE_READERS, TRACE_WRITERS, plugin_names
from moefabric.core.errors import TraceError
from moefabric.traces.formats import named_reader, named_writer, read_trace, read_with_format
from moefabric.workload.graphs.execution_graph import ExecutionGraph

DATA = Path(__file__).parents[2] / "data" / "traces" / "pytorch"


class Magic:
    def __init__(self, name: str, magic: bytes) -> None:
        self.name, self._magic = name, magic

    def matches(self, path: Path, head: bytes) -> bool:
        return head.startswith(self._magic)

    def read(self, path: Path) -> ExecutionGraph:
        return ExecutionGraph({}, name=self.name)


READERS = [Magic("numbers", b"0"), Magic("letters", b"a"), Magic("words", b"ab")]


def test_the_only_reader_that_knows_the_content_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "a.0"
    file.write_bytes(b"ac")
    graph = read_trace(file, readers=READERS)
    assert isinstance(graph, ExecutionGraph)
    assert graph.name == "letters"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"-", "no known format; known are numbers, letters, words"),
        (b"ab", "any of letters, words"),
    ],
)
def test_none_or_two_readers_are_a_fault(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.0"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path, readers=READERS)


def test_all_registered_formats_have_the_name_that_they_are_registered_by() -> None:
    readers, writers = plugin_names(TRACE_READERS), plugin_names(TRACE_WRITERS)
    assert [named_reader(name).name for name in readers] == [*readers] != []
    assert [named_writer(name).name for name in writers] == [*writers] != []


def test_given_format_of_another_content_is_told_the_content() -> None:
    with pytest.raises(TraceError, match="et_: the content is pytorch-et, not chakra"):
        read_trace(DATA / "gloo" / "et_", "chakra")
    with pytest.raises(TraceError, match="kineto_: the content is kineto, not pytorch-et"):
        read_with_format(DATA / "gloo" / "kineto_", "pytorch-et")
