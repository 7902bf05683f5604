"""Numbers of OpenFlow 1.3.5 (ONF TS-023): message types, commands, ports and errors."""

from enum import IntEnum
from typing import Final

VERSION: Final = 4
NO_BUFFER: Final = 0xFFFFFFFF
MAX_LENGTH: Final = 0xFFFF  # of a message with its header
MAX_TABLE: Final = 0xFE
ALL_TABLES: Final = 0xFF
MAX_XID: Final = 0xFFFFFFFF
PORT_DOWN: Final = 1  # OFPPC_PORT_DOWN, in the configuration of a port
LINK_DOWN: Final = 1  # OFPPS_LINK_DOWN, in the state of a port
MAX_GROUP: Final = 0xFFFFFF00
ALL_GROUPS: Final = 0xFFFFFFFC
ANY_GROUP: Final = 0xFFFFFFFF
WHOLE_FRAME: Final = 0xFFFF
"""`max_len` of an output that sends a whole frame to the controller (OFPCML_NO_BUFFER)."""


class MessageType(IntEnum):
    """Type of a message (7.1). Replies without a name here follow the type of their request."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    EXPERIMENTER = 4
    FEATURES_REQUEST = 5
    FEATURES_REPLY = 6
    GET_CONFIG_REQUEST = 7
    SET_CONFIG = 9
    PACKET_IN = 10
    FLOW_REMOVED = 11
    PORT_STATUS = 12
    PACKET_OUT = 13
    FLOW_MOD = 14
    GROUP_MOD = 15
    PORT_MOD = 16
    TABLE_MOD = 17
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    QUEUE_GET_CONFIG_REQUEST = 22
    ROLE_REQUEST = 24
    GET_ASYNC_REQUEST = 26
    SET_ASYNC = 28
    METER_MOD = 29


class MultipartType(IntEnum):
    """Type of a multipart request (7.3.5)."""

    DESC = 0
    FLOW = 1
    AGGREGATE = 2
    TABLE = 3
    PORT_STATS = 4
    QUEUE = 5
    GROUP = 6
    GROUP_DESC = 7
    GROUP_FEATURES = 8
    METER = 9
    METER_CONFIG = 10
    METER_FEATURES = 11
    TABLE_FEATURES = 12
    PORT_DESC = 13
    EXPERIMENTER = 0xFFFF


class FlowCommand(IntEnum):
    """Command of a flow-mod (7.3.4.1)."""

    ADD = 0
    MODIFY = 1
    MODIFY_STRICT = 2
    DELETE = 3
    DELETE_STRICT = 4


class FlowFlag(IntEnum):
    """Flags of a flow entry (7.3.4.1)."""

    SEND_FLOW_REM = 1
    CHECK_OVERLAP = 2
    RESET_COUNTS = 4
    NO_PKT_COUNTS = 8
    NO_BYT_COUNTS = 16


class RemovedReason(IntEnum):
    """Why a flow entry was removed (7.4.2)."""

    IDLE_TIMEOUT = 0
    HARD_TIMEOUT = 1
    DELETE = 2
    GROUP_DELETE = 3


class GroupCommand(IntEnum):
    """Command of a group-mod (7.3.4.2)."""

    ADD = 0
    MODIFY = 1
    DELETE = 2


class GroupType(IntEnum):
    """Types of groups, which use their buckets differently (5.6.1), by number (7.3.4.2)."""

    ALL = 0
    """Executes every bucket, each on a copy of the packet."""
    SELECT = 1
    """Executes one bucket, chosen by the packet's five-tuple and the buckets' weights."""
    INDIRECT = 2
    """Executes its only bucket."""
    FAST_FAILOVER = 3
    """Executes the first bucket whose watched port is up."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class PortNumber(IntEnum):
    """Reserved port numbers (7.2.1)."""

    MAX = 0xFFFFFF00
    IN_PORT = 0xFFFFFFF8
    TABLE = 0xFFFFFFF9
    FLOOD = 0xFFFFFFFB
    ALL = 0xFFFFFFFC
    CONTROLLER = 0xFFFFFFFD
    ANY = 0xFFFFFFFF


class InstructionType(IntEnum):
    """Type of an instruction (7.2.4)."""

    GOTO_TABLE = 1
    WRITE_METADATA = 2
    WRITE_ACTIONS = 3
    APPLY_ACTIONS = 4
    CLEAR_ACTIONS = 5
    METER = 6


class ActionType(IntEnum):
    """Type of an action that this codec supports, and of experimenter actions (7.2.5)."""

    OUTPUT = 0
    GROUP = 22
    SET_FIELD = 25
    EXPERIMENTER = 0xFFFF


class PacketInReason(IntEnum):
    """Why a packet is sent to the controller (7.4.1)."""

    NO_MATCH = 0
    ACTION = 1


class ControllerRole(IntEnum):
    """Role of a controller (7.3.9)."""

    NOCHANGE = 0
    EQUAL = 1
    MASTER = 2
    SLAVE = 3


class ErrorCode(IntEnum):
    """An error (7.4.4): its type in the upper 16 bits, its code in the lower."""

    HELLO_INCOMPATIBLE = 0x0000_0000
    BAD_VERSION = 0x0001_0000
    BAD_TYPE = 0x0001_0001
    BAD_MULTIPART = 0x0001_0002
    BAD_EXPERIMENTER = 0x0001_0003
    REQUEST_NOT_PERMITTED = 0x0001_0005
    BAD_LEN = 0x0001_0006
    BUFFER_UNKNOWN = 0x0001_0008
    IS_SLAVE = 0x0001_000A
    BAD_PORT = 0x0001_000B
    MULTIPART_BUFFER_OVERFLOW = 0x0001_000D
    ACTION_BAD_TYPE = 0x0002_0000
    ACTION_BAD_LEN = 0x0002_0001
    ACTION_BAD_EXPERIMENTER = 0x0002_0002
    ACTION_BAD_OUT_PORT = 0x0002_0004
    ACTION_BAD_OUT_GROUP = 0x0002_0009
    ACTION_MATCH_INCONSISTENT = 0x0002_000A
    ACTION_BAD_SET_TYPE = 0x0002_000D
    ACTION_BAD_SET_LEN = 0x0002_000E
    ACTION_BAD_SET_ARGUMENT = 0x0002_000F
    INSTRUCTION_UNKNOWN = 0x0003_0000
    INSTRUCTION_UNSUPPORTED = 0x0003_0001
    INSTRUCTION_BAD_TABLE = 0x0003_0002
    INSTRUCTION_BAD_EXPERIMENTER = 0x0003_0005
    INSTRUCTION_BAD_LEN = 0x0003_0007
    MATCH_BAD_TYPE = 0x0004_0000
    MATCH_BAD_LEN = 0x0004_0001
    MATCH_BAD_WILDCARDS = 0x0004_0005
    MATCH_BAD_FIELD = 0x0004_0006
    MATCH_BAD_VALUE = 0x0004_0007
    MATCH_BAD_MASK = 0x0004_0008
    MATCH_BAD_PREREQUISITE = 0x0004_0009
    MATCH_DUPLICATE_FIELD = 0x0004_000A
    FLOW_TABLE_FULL = 0x0005_0001
    FLOW_BAD_TABLE = 0x0005_0002
    FLOW_OVERLAP = 0x0005_0003
    FLOW_BAD_COMMAND = 0x0005_0006
    FLOW_BAD_FLAGS = 0x0005_0007
    GROUP_EXISTS = 0x0006_0000
    GROUP_INVALID = 0x0006_0001
    GROUP_OUT_OF_GROUPS = 0x0006_0003
    GROUP_OUT_OF_BUCKETS = 0x0006_0004
    GROUP_WATCH_UNSUPPORTED = 0x0006_0006
    GROUP_LOOP = 0x0006_0007
    GROUP_UNKNOWN = 0x0006_0008
    GROUP_CHAINED = 0x0006_0009
    GROUP_BAD_TYPE = 0x0006_000A
    GROUP_BAD_COMMAND = 0x0006_000B
    GROUP_BAD_BUCKET = 0x0006_000C
    GROUP_BAD_WATCH = 0x0006_000D
    PORT_MOD_BAD_PORT = 0x0007_0000
    PORT_MOD_BAD_CONFIG = 0x0007_0002
    TABLE_MOD_BAD_TABLE = 0x0008_0000
    TABLE_MOD_BAD_CONFIG = 0x0008_0001
    QUEUE_BAD_PORT = 0x0009_0000
    QUEUE_BAD_QUEUE = 0x0009_0001
    SWITCH_BAD_FLAGS = 0x000A_0000
    ROLE_STALE = 0x000B_0000
    ROLE_BAD = 0x000B_0002
    METER_UNKNOWN = 0x000C_0003
    METER_BAD_COMMAND = 0x000C_0004
    METER_OUT_OF_METERS = 0x000C_000A

    @property
    def wire(self) -> bytes:
        """Type and code as an error message carries them."""
        return self.to_bytes(4)


class OpenFlowError(Exception):
    """A message is refused; an error message (7.4.4) carries the code, and the log the detail."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}{': ' + detail if detail else ''}")
        self.code = code


def refuse_if(condition: object, code: ErrorCode, detail: str = "") -> None:
    """Raise OpenFlowError if a condition holds."""
    if condition:
        raise OpenFlowError(code, detail)
