"""A socket on which a switch speaks OpenFlow, and what is waited for there."""

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from emulator.switch.openflow import Conversation

_READ_BYTES: Final = 1 << 18


class Connection:
    """A conversation that is on its way. It never waits: what can't be sent now is kept, and who doesn't read isn't heard either."""

    def __init__(
        self,
        sock: socket.socket,
        conversation: Conversation,
        waiting: selectors.BaseSelector,
        attend: Callable[["Connection"], None],
    ) -> None:
        """`attend` is called, in `waiting`'s turn, whenever there is something to be heard or sent."""
        self.sock, self.conversation = sock, conversation
        self._waiting, self._attend = waiting, attend
        self._events = 0

    def hear(self, now_ns: int) -> str | None:
        """Take what has come; why the connection is over, if it is."""
        try:
            heard = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as fault:
            return fault.strerror or str(fault)
        if not heard:
            return "hung up"
        self.conversation.hear(heard, now_ns)
        return None

    def settle(self, now_ns: int) -> str | None:
        """Send what can be sent, and wait for what there is to wait for; why the connection is over, if it is."""
        try:
            self.conversation.take(self.sock.send, now_ns)
        except BlockingIOError:
            pass
        except OSError as fault:
            return fault.strerror or str(fault)
        if self.conversation.over:
            return "the conversation is over"
        self._await()
        return None

    def _await(self) -> None:
        reads = selectors.EVENT_READ if self.conversation.listens else 0
        events = reads | (selectors.EVENT_WRITE if self.conversation.unsaid else 0)
        if events == self._events:
            return
        if self._events:
            self._waiting.modify(self.sock, events, lambda: self._attend(self))
        else:
            self._waiting.register(self.sock, events, lambda: self._attend(self))
        self._events = events

    def close(self) -> None:
        """Hang up; what is unsent is lost."""
        if self._events:
            with suppress(KeyError):
                self._waiting.unregister(self.sock)
        self._events = 0
        self.conversation.close()
        self.sock.close()
