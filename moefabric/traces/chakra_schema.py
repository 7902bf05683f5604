"""Messages of Chakra execution traces, and the stream of them that a file is.

Source: schema/protobuf/et_def.proto of mlcommons/chakra, versions 0.0.4 and 1.0.0. A file is a
`GlobalMetadata` and then a `Node` for each operation, each with its length in front. Files that a
protobuf library wrote come back byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from moefabric.traces import protobuf
from moefabric.traces.protobuf import Field, Scalar, ScalarKind, Span, WireError

INVALID, METADATA, MEMORY_LOAD, MEMORY_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(8)
"""Types of nodes."""

ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST = range(6)
ALL_TO_ALL, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, BARRIER = range(6, 10)
"""Values of the attribute `comm_type`."""

MAX_NODES: Final = 4_000_000
"""Nodes of a file: an empty one takes a byte in the file and hundreds in memory."""

_FIRST_VALUE: Final = 3
"""Number of an attribute's first kind of value; each kind is followed by its list."""
_KINDS: Final[Mapping[int, tuple[ScalarKind, bool]]] = {
    _FIRST_VALUE + 2 * n + listed: (kind, bool(listed))
    for n, kind in enumerate(get_args(ScalarKind))
    for listed in (0, 1)
}
_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named value of a node or file.

    Attributes:
        name: Its name.
        kind: Type of the value, or of each value of a list; None without a value.
        value: The value; a tuple if it is a list.
        doc: Explanation.
        unknown: Fields that this schema does not have, encoded.
    """

    name: str
    kind: ScalarKind | None = None
    value: Scalar | tuple[Scalar, ...] = 0
    doc: str = ""
    unknown: bytes = b""

    def encode(self) -> bytes:
        """Return the message's bytes.

        Raises:
            ValueError: If the kind can't hold the value.
        """
        value = b""
        if self.kind and isinstance(self.value, tuple):
            values = protobuf.packed_field(1, list(self.value), self.kind)
            value = protobuf.bytes_field(_NUMBERS[self.kind, True], values)
        elif self.kind and not isinstance(self.value, tuple):
            value = protobuf.scalar_field(_NUMBERS[self.kind, False], self.value, self.kind)
        texts = protobuf.text_field(1, self.name) + protobuf.text_field(2, self.doc)
        return texts + value + self.unknown


@dataclass(frozen=True, slots=True)
class Tensors:
    """Inputs or outputs of a node, each a Python literal as text."""

    values: str = ""
    shapes: str = ""
    types: str = ""
    unknown: bytes = b""

    def encode(self) -> bytes:
        """Return the message's bytes."""
        texts = enumerate((self.values, self.shapes, self.types), start=1)
        return b"".join(protobuf.text_field(*numbered) for numbered in texts) + self.unknown


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """An operation of a file.

    Attributes:
        number: Its number, unique in the file.
        name: Its name.
        type: `COMPUTE`, `COLLECTIVE` and so on.
        control_after: Numbers of nodes that it depends on for control.
        data_after: Numbers of nodes whose results it takes.
        start_us: Start in microseconds.
        duration_us: Duration in microseconds.
        inputs: Input tensors.
        outputs: Output tensors.
        attributes: Everything else.
        unknown: Fields that this schema does not have, encoded.
        offset: Where the node is in its file.
    """

    number: int
    name: str = ""
    type: int = INVALID
    control_after: tuple[int, ...] = ()
    data_after: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    inputs: Tensors | None = None
    outputs: Tensors | None = None
    attributes: tuple[Attribute, ...] = ()
    unknown: bytes = b""
    offset: int = 0

    def encode(self) -> bytes:
        """Return the message's bytes.

        Raises:
            ValueError: If the kind of an attribute can't hold its value.
        """
        parts = [
            protobuf.number_field(1, self.number),
            protobuf.text_field(2, self.name),
            protobuf.number_field(3, self.type),
            protobuf.packed_field(4, list(self.control_after), "uint64"),
            protobuf.packed_field(5, list(self.data_after), "uint64"),
            protobuf.number_field(6, self.start_us),
            protobuf.number_field(7, self.duration_us),
        ]
        parts += [
            protobuf.bytes_field(number, tensors.encode())
            for number, tensors in ((8, self.inputs), (9, self.outputs))
            if tensors is not None
        ]
        parts += [protobuf.bytes_field(10, one.encode()) for one in self.attributes]
        return b"".join([*parts, self.unknown])


@dataclass(frozen=True, slots=True)
class ChakraFile:
    """The trace of one rank.

    Attributes:
        version: Version of the schema.
        attributes: Facts of the whole file.
        nodes: Operations, in the file's order.
        unknown: Fields of the first message that this schema does not have, encoded.
    """

    version: str = "0.0.4"
    attributes: tuple[Attribute, ...] = ()
    nodes: tuple[ChakraNode, ...] = ()
    unknown: bytes = b""

    def encode(self) -> bytes:
        """Return the file's bytes.

        Raises:
            ValueError: If the kind of an attribute can't hold its value.
        """
        head = protobuf.text_field(1, self.version)
        head += b"".join(protobuf.bytes_field(2, one.encode()) for one in self.attributes)
        nodes = (protobuf.delimited(node.encode()) for node in self.nodes)
        return b"".join([protobuf.delimited(head + self.unknown), *nodes])


def decode_file(data: bytes) -> ChakraFile:
    """Return the trace in a file's bytes.

    Raises:
        WireError: If they are not a stream of these messages; it has the offset.
    """
    head = protobuf.read_delimited(data, 0, len(data))
    version, attributes, unknown = "", [], b""
    for field in protobuf.fields(head):
        if field.number == 1:
            version = protobuf.text(field)
        elif field.number == 2:
            attributes.append(_attribute(protobuf.submessage(field)))
        else:
            unknown += field.raw()
    nodes: list[ChakraNode] = []
    start = head.end
    while start < len(data):
        if len(nodes) == MAX_NODES:
            raise WireError(start, f"there are more than {MAX_NODES} nodes")
        span = protobuf.read_delimited(data, start, len(data))
        nodes.append(_node(span))
        start = span.end
    return ChakraFile(version, tuple(attributes), tuple(nodes), unknown)


def _node(span: Span) -> ChakraNode:
    numbers = {1: 0, 3: INVALID, 6: 0, 7: 0}
    after: dict[int, list[int]] = {4: [], 5: []}
    tensors: dict[int, Tensors | None] = {8: None, 9: None}
    name, unknown, attributes = "", b"", []
    for field in protobuf.fields(span):
        if field.number in numbers:
            numbers[field.number] = protobuf.unsigned(field)
        elif field.number == 2:
            name = protobuf.text(field)
        elif field.number in after:
            after[field.number] += map(int, protobuf.scalars(field, "uint64"))
        elif field.number in tensors:
            tensors[field.number] = _tensors(protobuf.submessage(field))
        elif field.number == 10:
            attributes.append(_attribute(protobuf.submessage(field)))
        else:
            unknown += field.raw()
    return ChakraNode(
        numbers[1], name, numbers[3], tuple(after[4]), tuple(after[5]), numbers[6], numbers[7],
        tensors[8], tensors[9], tuple(attributes), unknown, span.start,
    )  # fmt: skip


def _tensors(span: Span) -> Tensors:
    texts, unknown = {1: "", 2: "", 3: ""}, b""
    for field in protobuf.fields(span):
        if field.number in texts:
            texts[field.number] = protobuf.text(field)
        else:
            unknown += field.raw()
    return Tensors(texts[1], texts[2], texts[3], unknown)


def _attribute(span: Span) -> Attribute:
    texts, unknown = {1: "", 2: ""}, b""
    kind: ScalarKind | None = None
    value: Scalar | tuple[Scalar, ...] = 0
    for field in protobuf.fields(span):
        if field.number in texts:
            texts[field.number] = protobuf.text(field)
        elif field.number in _KINDS:
            kind, is_list = _KINDS[field.number]
            value = _values(field, kind) if is_list else protobuf.scalar(field, kind)
        else:
            unknown += field.raw()
    return Attribute(texts[1], kind, value, texts[2], unknown)


def _values(field: Field, kind: ScalarKind) -> tuple[Scalar, ...]:
    """Return the values of a list, which is a message with one repeated field."""
    values: list[Scalar] = []
    for item in protobuf.fields(protobuf.submessage(field)):
        if item.number == 1:
            values += protobuf.scalars(item, kind)
    return tuple(values)
