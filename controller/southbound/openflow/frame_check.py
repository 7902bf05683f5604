"""Checks a switch's messages before the framework decodes them (OpenFlow 1.3.5, section 7).

Ryu 4.34 and os-ken 3 and 4 step from one element of a message to the next by the length that the
element gives, and stay at an element of length zero forever. All green threads of a controller then
stand still. The framework therefore gets only the few types of messages that a controller expects,
and only with lengths that add up.
"""

from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.constants import ErrorCode, MessageType, OpenFlowError, refuse_if
from moefabric.core.openflow.messages import HEADER, Message, supports_version

_OLDEST_VERSION: Final = 1
_HELLO_FAILED: Final = b"\0\0"
_LENGTHS: Final = {MessageType.FEATURES_REPLY: 32, MessageType.PORT_STATUS: 80}
_READ_BY_CONTROLLER: Final = frozenset(
    {
        MessageType.PACKET_IN,
        MessageType.BARRIER_REPLY,
        MessageType.EXPERIMENTER,
        MessageType.FLOW_REMOVED,
    }
)
_PORT_BYTES: Final = 64
_ERROR_BYTES: Final = 12


def check(message: Message) -> Message | None:
    """Check a complete message.

    Returns:
        The message as the framework reads it; None for one that the controller reads by itself.

    Raises:
        OpenFlowError: If its version, its type, or any length in it is wrong. No switch sends such
            a message, and nothing after it can be trusted.
    """
    kind, length = message.type, len(message.wire)
    if message.version != ofp.VERSION and kind != MessageType.HELLO:
        raise OpenFlowError(ErrorCode.BAD_VERSION, f"version {message.version}")
    if kind in _READ_BY_CONTROLLER:  # before the comparisons: a reconfiguration waits for dozens
        return None
    match kind:
        case MessageType.HELLO:
            return _hello(message)
        case MessageType.ECHO_REQUEST | MessageType.ECHO_REPLY:
            return message
        case MessageType.FEATURES_REPLY | MessageType.PORT_STATUS:
            if length != (expected := _LENGTHS[MessageType(kind)]):
                detail = f"type {kind} of {length} bytes instead of {expected}"
                raise OpenFlowError(ErrorCode.BAD_LEN, detail)
            return message
        case MessageType.MULTIPART_REPLY:
            return _multipart(message)
        case MessageType.ERROR:  # names the request that failed, at least by its header (7.5.4)
            is_hello_failed = message.body[:2] == _HELLO_FAILED
            message.require(_ERROR_BYTES + (0 if is_hello_failed else HEADER.size))
            return None
    raise OpenFlowError(ErrorCode.BAD_TYPE, f"type {kind}, which a controller doesn't expect")


def _hello(message: Message) -> Message:
    """Return a hello of 1.3 without elements if the switch supports 1.3, else one of 1.0.

    The frameworks don't skip the padding of elements, nor know all versions.
    """
    version = ofp.VERSION if supports_version(message) else _OLDEST_VERSION
    wire = HEADER.pack(version, MessageType.HELLO, HEADER.size, message.xid)
    return Message(version, MessageType.HELLO, message.xid, wire)


def _multipart(message: Message) -> Message | None:
    (kind,) = message.fields("H6x")
    if kind == ofp.MultipartType.FLOW:
        return None
    detail = f"a multipart reply of type {kind}, which a controller doesn't expect"
    refuse_if(kind != ofp.MultipartType.PORT_DESC, ErrorCode.BAD_MULTIPART, detail)
    detail = f"port descriptions of {len(message.wire)} bytes"
    refuse_if(len(message.tail("H6x")) % _PORT_BYTES, ErrorCode.BAD_LEN, detail)
    return message
