"""Token counts that programs exchange before the tokens themselves."""

from collections.abc import Sequence
from typing import Final

import torch

MOST_EXPERTS: Final = 1 << 16


class TokenCounts:
    """The last integer all-to-all of a group, in case it announces the next exchange.

    Args:
        size: Ranks of the group.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: tuple[int, ...] = ()

    def announce(self, counts: torch.Tensor, split_sizes: Sequence[int]) -> None:
        """Keep the counts that a rank sends in an integer all-to-all.

        Args:
            counts: Equally many integers for each rank, such as one for each of its experts.
            split_sizes: Rows for each rank; empty for equally many.
        """
        self._counts = ()
        equal = len(set(split_sizes)) <= 1
        if equal and 0 < counts.numel() <= MOST_EXPERTS and counts.numel() % self._size == 0:
            self._counts = tuple(int(count) for count in counts.detach().reshape(-1).tolist())

    def take(self, send_bytes: Sequence[int]) -> tuple[int, ...] | None:
        """Return the counts if they announced an exchange, else None; forget them."""
        counts, self._counts = self._counts, ()
        return counts if announces(counts, send_bytes) else None


def announces(counts: Sequence[int], send_bytes: Sequence[int]) -> bool:
    """Return whether the counts for each rank, times the bytes of a token, are an exchange's sizes.

    Args:
        counts: Tokens for each expert; those of a rank follow each other.
        send_bytes: Bytes for each rank.
    """
    if not counts or min(counts) < 0:
        return False
    per_rank = len(counts) // len(send_bytes)
    tokens = [
        sum(counts[rank * per_rank : (rank + 1) * per_rank]) for rank in range(len(send_bytes))
    ]
    total_tokens, total_bytes = sum(tokens), sum(send_bytes)
    if not total_tokens:
        return not total_bytes
    return total_bytes > 0 and all(
        size * total_tokens == total_bytes * count
        for size, count in zip(send_bytes, tokens, strict=True)
    )
