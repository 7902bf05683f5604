"""What a controller asks and sets of its own connection: features, configuration, role, which news it wants (OpenFlow 1.3.5, 7.3.1, 7.3.2, 7.3.9, 7.3.10)."""

import struct
from collections.abc import Callable, Mapping
from typing import Final

from emulator.switch import messages, written
from emulator.switch.messages import Message
from emulator.switch.openflow_news import News
from emulator.switch.openflow_numbers import OpenFlowError, Refusal, Role, Type
from emulator.switch.openflow_switch import Switch
from emulator.switch.table import TABLES

_CAPABILITIES: Final = 1 | 2 | 4 | 8  # flow, table, port and group statistics


class Settings:
    """Those of one connection. What is answered is a message, or no bytes where there is nothing to say."""

    def __init__(self, switch: Switch, news: News) -> None:
        self._switch, self._news = switch, news
        self._config = (0, 128)
        self.answers: Mapping[int, Callable[[Message], bytes]] = {
            Type.FEATURES_REQUEST: self._features,
            Type.GET_CONFIG_REQUEST: self._get_config,
            Type.SET_CONFIG: self._set_config,
            Type.ROLE_REQUEST: self._role,
            Type.GET_ASYNC_REQUEST: self._get_async,
            Type.SET_ASYNC: self._set_async,
        }

    def _features(self, message: Message) -> bytes:
        messages.alone(message)
        return written.features_reply(message.xid, self._switch.datapath_id, TABLES, _CAPABILITIES)

    def _get_config(self, message: Message) -> bytes:
        messages.alone(message)
        return written.message(Type.GET_CONFIG_REPLY, message.xid, struct.pack("!HH", *self._config))

    def _set_config(self, message: Message) -> bytes:
        """Fragments are treated as any packet, and not otherwise."""
        flags, length = messages.numbers(message, "HH")
        if flags:
            raise OpenFlowError(Refusal.SWITCH_BAD_FLAGS, f"{flags:#x}")
        self._config = flags, length
        return b""

    def _role(self, message: Message) -> bytes:
        """Who is master among several is decided by those who ask; a generation that is past asks in vain (6.3.6)."""
        wanted, generation = messages.role(message)
        if wanted > Role.SLAVE:
            raise OpenFlowError(Refusal.ROLE_BAD, f"role {wanted}")
        if wanted in {Role.MASTER, Role.SLAVE}:
            if self._switch.generation >= 0 and (generation - self._switch.generation) & 1 << 63:
                raise OpenFlowError(Refusal.ROLE_STALE, f"generation {generation}")
            self._switch.generation = generation
        if wanted == Role.MASTER:
            for each in self._switch.listeners:
                each.yield_to_master()
        if wanted:
            self._news.role = Role(wanted)
        said = self._switch.generation & 0xFFFFFFFFFFFFFFFF
        return written.message(Type.ROLE_REPLY, message.xid, struct.pack("!I4xQ", self._news.role, said))

    def _get_async(self, message: Message) -> bytes:
        messages.alone(message)
        return written.message(Type.GET_ASYNC_REPLY, message.xid, struct.pack("!6I", *self._news.masks))

    def _set_async(self, message: Message) -> bytes:
        self._news.masks = messages.numbers(message, "6I")
        return b""
