"""Versions that a node of a cluster has installed, and whether it can carry part of a fabric."""

import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from moefabric.core.errors import UnsupportedError


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a node that have to agree with those of the head, or that a fabric needs.

    Attributes:
        node: Host name.
        moefabric: Version of this package.
        sources: Digest of its source files.
        python: Major and minor version of Python.
        is_root: Whether programs that Ray starts there run as root.
    """

    node: str
    moefabric: str
    sources: str
    python: str
    is_root: bool


def own_facts() -> NodeFacts:
    """Return the facts of this machine."""
    return NodeFacts(
        node=platform.node(),
        moefabric=version("moefabric"),
        sources=_source_digest(),
        python=".".join(platform.python_version_tuple()[:2]),
        is_root=os.geteuid() == 0,
    )


def check_nodes(head: NodeFacts, nodes: Sequence[NodeFacts]) -> None:
    """Check that nodes can carry parts of a fabric.

    Raises:
        UnsupportedError: With all faults of all nodes, and the remedies.
    """
    if faults := [fault for node in nodes for fault in _faults(head, node)]:
        raise UnsupportedError("\n".join(faults))


def _faults(head: NodeFacts, node: NodeFacts) -> Iterator[str]:
    if node.python != head.python:
        yield (
            f"{node.node}: Python {node.python}, and {head.python} on {head.node}: start Ray there "
            "from an environment with the same Python"
        )
    if node.moefabric != head.moefabric:
        yield (
            f"{node.node}: moefabric {node.moefabric}, and {head.moefabric} on {head.node}: "
            "install the same version"
        )
    elif node.sources != head.sources:
        yield (
            f"{node.node}: moefabric {node.moefabric} with other source files than on {head.node}: "
            "install the same build"
        )
    if not node.is_root:
        yield f"{node.node}: Ray doesn't run as root, which fabrics need: `sudo ray start` there"


def _source_digest() -> str:
    """Return a digest of this package's source files, which editable installations may change."""
    root = Path(__file__).parents[1]
    paths = sorted(
        Path(folder, file)
        for folder, _, files in os.walk(root, followlinks=True)
        for file in files
        if file.endswith(".py")
    )
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
