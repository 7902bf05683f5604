"""Trace readers as another package has them."""

from __future__ import annotations

from pathlib import Path

from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node


class ImpossibleReader:
    """A reader of another package whose graph can't run."""

    name = "impossible"

    def matches(self, _path: Path, _head: bytes) -> bool:
        return True

    def read(self, _path: Path) -> ExecutionGraph:
        return ExecutionGraph({0: (Node(1, "compute", after=(5,)),)})
