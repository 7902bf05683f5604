"""State of one controller connection: configuration, role, and filter of asynchronous messages.

The switch has neither meters nor queues, and its ports and tables can't be configured. This module
also checks and answers the messages for them. Section numbers refer to OpenFlow 1.3.5.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from moefabric.core import switch_proof
from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, refuse_if
from moefabric.core.openflow.messages import Message, encode_message, encode_reply
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.tables.flow_tables import TABLE_COUNT

_CAPABILITIES: Final = 1 | 2 | 4 | 8  # flow, table, port and group statistics
_DEPRECATED: Final = 3  # OFPTC_DEPRECATED_MASK
_DEFAULT_MASKS: Final = (0b111, 0, 0b111, 0b111, 0b1111, 0)
_METER_COMMANDS: Final = (
    ErrorCode.METER_OUT_OF_METERS,  # OFPMC_ADD
    ErrorCode.METER_UNKNOWN,  # OFPMC_MODIFY
    None,  # OFPMC_DELETE: the meter doesn't exist anyway (6.6)
)


class AsyncKind(IntEnum):
    """Asynchronous messages, by their index in struct ofp_async_config (7.3.10)."""

    PACKET_IN = 0
    PORT_STATUS = 1
    FLOW_REMOVED = 2


class ConnectionSettings:
    """Settings of a connection, which its controller reads and writes.

    `replies` has a handler for each type of request, which returns an encoded reply if any.
    """

    def __init__(self, switch: OpenFlowSwitch, *, passive: bool) -> None:
        """Start with defaults; a passive connection gets no asynchronous messages by default."""
        self._switch = switch
        self._config: tuple[int, ...] = (0, 128)
        self._masks: tuple[int, ...] = (0,) * 6 if passive else _DEFAULT_MASKS
        self.role = ofp.ControllerRole.EQUAL
        self.replies: Mapping[int, Callable[[Message], bytes | None]] = {
            ofp.MessageType.FEATURES_REQUEST: self._state,
            ofp.MessageType.GET_CONFIG_REQUEST: self._state,
            ofp.MessageType.SET_CONFIG: self._set_config,
            ofp.MessageType.ROLE_REQUEST: self._set_role,
            ofp.MessageType.GET_ASYNC_REQUEST: self._state,
            ofp.MessageType.SET_ASYNC: self._set_async,
            ofp.MessageType.PORT_MOD: self._modify_port,
            ofp.MessageType.TABLE_MOD: self._modify_table,
            ofp.MessageType.METER_MOD: self._modify_meter,
            ofp.MessageType.QUEUE_GET_CONFIG_REQUEST: self._queue_config,
            ofp.MessageType.ECHO_REQUEST: self._echo,
            ofp.MessageType.EXPERIMENTER: self._experimenter,
        }

    def wants(self, kind: AsyncKind, reason: int) -> bool:
        """Return whether the controller wants an asynchronous message in its present role."""
        mask = self._masks[2 * kind + (self.role is ofp.ControllerRole.SLAVE)]
        return bool(mask >> reason & 1)

    def check_write_access(self) -> None:
        """Raise OpenFlowError (IS_SLAVE) if the controller may only read."""
        if self.role is ofp.ControllerRole.SLAVE:
            raise OpenFlowError(ErrorCode.IS_SLAVE)

    def _state(self, message: Message) -> bytes:
        """Return the features, the configuration, or the filter of asynchronous messages."""
        message.require_empty_body()
        features = self._switch.datapath_id, 0, TABLE_COUNT, 0, _CAPABILITIES, 0
        layout, fields = {
            ofp.MessageType.FEATURES_REQUEST: ("QIBB2xII", features),
            ofp.MessageType.GET_CONFIG_REQUEST: ("HH", self._config),
            ofp.MessageType.GET_ASYNC_REQUEST: ("6I", self._masks),
        }[ofp.MessageType(message.type)]
        return encode_reply(message, layout, *fields)

    def _set_config(self, message: Message) -> None:
        """Set the length of packet-ins; refuse special treatment of fragments (7.3.2)."""
        flags, miss_send_len = message.fields("HH")
        refuse_if(flags, ErrorCode.SWITCH_BAD_FLAGS, f"{flags:#x}")
        self._config = flags, miss_send_len

    def _set_role(self, message: Message) -> bytes:
        """Make the requesting controller master or slave; refuse an old generation (6.3.6)."""
        role, generation = message.fields("I4xQ")
        refuse_if(role > ofp.ControllerRole.SLAVE, ErrorCode.ROLE_BAD, f"role {role}")
        if role in {ofp.ControllerRole.MASTER, ofp.ControllerRole.SLAVE}:
            current = self._switch.generation_id
            is_old = current >= 0 and (generation - current) & 1 << 63
            refuse_if(is_old, ErrorCode.ROLE_STALE, f"generation {generation}")
            self._switch.generation_id = generation
        if role == ofp.ControllerRole.MASTER:
            for listener in self._switch.listeners:
                if listener.settings.role is ofp.ControllerRole.MASTER:
                    listener.settings.role = ofp.ControllerRole.SLAVE
        if role:
            self.role = ofp.ControllerRole(role)
        generation = self._switch.generation_id & 0xFFFFFFFFFFFFFFFF
        return encode_reply(message, "I4xQ", self.role, generation)

    def _echo(self, message: Message) -> bytes:
        return encode_message(ofp.MessageType.ECHO_REPLY, message.xid, message.body)

    def _experimenter(self, message: Message) -> bytes:
        """Answer a challenge of the fabric's controller; refuse all other experimenters."""
        head, token = switch_proof.CHALLENGE_HEAD, self._switch.token
        challenge, is_challenge = message.body[len(head) :], message.body.startswith(head)
        is_known = is_challenge and token and len(challenge) == switch_proof.CHALLENGE_BYTES
        refuse_if(not is_known, ErrorCode.BAD_EXPERIMENTER, f"message {message.xid}")
        proof = switch_proof.proof(token, challenge, self._switch.datapath_id)
        body = switch_proof.PROOF_HEAD + proof
        return encode_message(ofp.MessageType.EXPERIMENTER, message.xid, body)

    def _set_async(self, message: Message) -> None:
        self._masks = message.fields("6I")

    def _modify_port(self, message: Message) -> None:
        self.check_write_access()
        port, _, mask = message.fields("I4x8xII8x")
        is_absent = port not in self._switch.ports
        refuse_if(is_absent, ErrorCode.PORT_MOD_BAD_PORT, f"port {port:#x}")
        refuse_if(mask, ErrorCode.PORT_MOD_BAD_CONFIG, f"mask {mask:#x}")

    def _modify_table(self, message: Message) -> None:
        """Accept the configuration bits of OpenFlow 1.3, which are without effect (7.3.3)."""
        self.check_write_access()
        table, config = message.fields("B3xI")
        is_absent = TABLE_COUNT <= table != ofp.ALL_TABLES
        refuse_if(is_absent, ErrorCode.TABLE_MOD_BAD_TABLE, f"table {table}")
        refuse_if(config & ~_DEPRECATED, ErrorCode.TABLE_MOD_BAD_CONFIG, f"{config:#x}")

    def _modify_meter(self, message: Message) -> None:
        self.check_write_access()
        command, _, meter = message.fields("HHI")
        is_unknown = command >= len(_METER_COMMANDS)
        refuse_if(is_unknown, ErrorCode.METER_BAD_COMMAND, f"command {command}")
        if code := _METER_COMMANDS[command]:
            raise OpenFlowError(code, f"meter {meter}")

    def _queue_config(self, message: Message) -> bytes:
        """Return an empty queue configuration, as ports have no queues (7.3.6)."""
        (port,) = message.fields("I4x")
        is_absent = port not in {*self._switch.ports, ofp.PortNumber.ANY}
        refuse_if(is_absent, ErrorCode.QUEUE_BAD_PORT, f"port {port:#x}")
        return encode_reply(message, "I4x", port)
