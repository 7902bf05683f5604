"""Contents of transfers that carry bytes of ranks: from a rank's shared memory to another's.

The bytes that a server owes another lie in several pieces, one for each pair of ranks. A transfer
carries consecutive bytes of them, and its trailer their crc32. The receiver stores them where they
belong, so it does not read a transfer before it knows which ranks asked for it.
"""

from __future__ import annotations

from moefabric.agents.engine.pieces import Pieces
from moefabric.agents.engine.transfers import Receive, Send, TransferKey


class ContentSend(Send):
    """A transfer of ranks' bytes to a peer."""

    def __init__(self, key: TransferKey, content: Pieces, rate_bps: float | None) -> None:
        super().__init__(key, content.length, rate_bps)
        self.content = content


class ContentReceive(Receive):
    """A transfer of ranks' bytes from a peer.

    Attributes:
        content: Where its bytes are stored.
        offset: Where they begin among all bytes that the peer owes this server.
    """

    def __init__(self, key: TransferKey, content: Pieces, offset: int = 0) -> None:
        super().__init__(key, content.length)
        self.content, self.offset = content, offset
