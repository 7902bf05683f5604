"""Messages of Chakra execution traces, and the stream of them that a file is.

Source: schema/protobuf/et_def.proto of mlcommons/chakra, versions 0.0.4 and 1.0.0. A file is a
`GlobalMetadata` and then a `Node` for each operation, each with its length in front. The messages
are made by the protobuf library, whose fields have the names of that schema. Files that a protobuf
library wrote come back byte for byte.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any, Final

from google.protobuf import message_factory, proto
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

INVALID, METADATA, MEMORY_LOAD, MEMORY_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(8)
"""Types of nodes."""

MAX_NODES: Final = 4_000_000
"""Nodes of a file: an empty one takes a byte in the file and hundreds in memory."""

Scalar = float | int | bool | str | bytes
_PACKAGE: Final = "chakra"
_KINDS: Final = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Kinds of an attribute's value, in the order of their fields; each is followed by its list."""


def _schema() -> FileDescriptorProto:
    file = FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add_fields(attribute, ("name", "string"), ("doc_string", "string"))
    for kind in _KINDS:
        values = f"{kind.capitalize()}List"
        _add_fields(file.message_type.add(name=values), ("values", f"{kind}*"))
        _add_fields(attribute, (f"{kind}_val", kind), (f"{kind}_list", values), oneof=True)
    metadata = file.message_type.add(name="GlobalMetadata")
    _add_fields(metadata, ("version", "string"), ("attr", "AttributeProto*"))
    tensors = file.message_type.add(name="IOInfo")
    _add_fields(tensors, ("values", "string"), ("shapes", "string"), ("types", "string"))
    node = file.message_type.add(name="Node")
    # The type is an enumeration, which is a number on the wire; this one may be unknown, too.
    _add_fields(node, ("id", "uint64"), ("name", "string"), ("type", "int32"))
    _add_fields(node, ("ctrl_deps", "uint64*"), ("data_deps", "uint64*"))
    _add_fields(node, ("start_time_micros", "uint64"), ("duration_micros", "uint64"))
    _add_fields(node, ("inputs", "IOInfo"), ("outputs", "IOInfo"), ("attr", "AttributeProto*"))
    return file


def _add_fields(message: DescriptorProto, *fields: tuple[str, str], oneof: bool = False) -> None:
    """Add fields with the next numbers; `*` after a kind marks a repeated field."""
    for name, kind in fields:
        label = "LABEL_REPEATED" if kind.endswith("*") else "LABEL_OPTIONAL"
        field = message.field.add(name=name, number=len(message.field) + 1, label=label)
        if (base := kind.rstrip("*")) in _KINDS:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{base.upper()}")
        else:
            field.type_name = f".{_PACKAGE}.{base}"
        if oneof:
            field.oneof_index = 0


_POOL: Final = DescriptorPool()
_POOL.AddSerializedFile(_schema().SerializeToString())


def _message(name: str) -> Any:
    """Return the class of a message; its fields exist at run time only."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


AttributeProto: Final = _message("AttributeProto")
GlobalMetadata: Final = _message("GlobalMetadata")
Node: Final = _message("Node")


class DamagedMessageError(Exception):
    """A message of a file is cut off or not of its kind.

    Attributes:
        number: Number of the message in its file, from 0.
        reason: What is wrong with it.
    """

    def __init__(self, number: int, reason: str) -> None:
        self.number, self.reason = number, reason
        super().__init__(f"message {number}: {reason}")


def attribute(name: str, kind: str, value: Scalar | Sequence[Scalar]) -> Message:
    """Return an attribute with a value, or with a list of values, of this kind.

    Raises:
        ValueError: If the kind can't hold the value.
    """
    is_list = isinstance(value, list | tuple)
    field = {f"{kind}_list": {"values": value}} if is_list else {f"{kind}_val": value}
    message: Message = AttributeProto(name=name, **field)
    return message


def attribute_values(message: Any) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """Return the values of a node's or a file's attributes by name; lists become tuples."""
    values: dict[str, Scalar | tuple[Scalar, ...]] = {}
    for attribute in message.attr:
        if (field := attribute.WhichOneof("value")) is not None:
            value = getattr(attribute, field)
            values[attribute.name] = tuple(value.values) if field.endswith("_list") else value
    return values


def is_metadata(head: bytes) -> bool:
    """Return whether a file begins with a `GlobalMetadata` that isn't empty."""
    try:
        message = _next_message(GlobalMetadata, BytesIO(head), 0)
    except DamagedMessageError:
        return False
    known = message.ListFields() and not len(UnknownFieldSet(message))
    return bool(known) and message.version.isprintable()


def encoded(messages: Iterable[Message]) -> bytes:
    """Return the bytes of a file: messages, each with its length in front."""
    file = BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, file)
    return file.getvalue()


def decoded(data: bytes) -> list[Any]:
    """Return the `GlobalMetadata` and the nodes in the bytes of a file.

    Raises:
        DamagedMessageError: If they are not a stream of these messages.
    """
    file = BytesIO(data)
    messages = [_next_message(GlobalMetadata, file, 0)]
    while file.tell() < len(data):
        if len(messages) > MAX_NODES:
            raise DamagedMessageError(len(messages), f"there are more than {MAX_NODES} nodes")
        messages.append(_next_message(Node, file, len(messages)))
    return messages


def _next_message(kind: Any, file: BytesIO, number: int) -> Any:
    try:
        if (message := proto.parse_length_prefixed(kind, file)) is not None:
            return message
        reason = "is missing"
    except (DecodeError, ValueError, OverflowError, EOFError) as error:
        reason = f"is cut off or no {kind.DESCRIPTOR.name}: {error}"
    raise DamagedMessageError(number, reason)
