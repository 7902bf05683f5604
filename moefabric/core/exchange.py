"""All-to-alls that programs ask for: the bytes of each sender for each receiver."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from moefabric.core.flows import PacedFlow

Pair = tuple[str, str]
"""A sending and a receiving server."""


@dataclass(frozen=True)
class Exchange:
    """An all-to-all that every rank of a group has asked for.

    Attributes:
        group: The ranks of the group, in its order.
        number: Counts the exchanges of the group from 0.
        servers: The server of each member.
        sends: Bytes [sending member][receiving member].
        dtype: Type of the numbers, such as `float32`.
        tokens: Tokens [member][expert] that the gate counted; None if the program didn't exchange
            their number.
        asked_ns: When each member asked, on the clock of the experiment.
        name: Name of the process group; several of them may have the same ranks.
    """

    group: tuple[int, ...]
    number: int
    servers: tuple[str, ...]
    sends: tuple[tuple[int, ...], ...]
    dtype: str
    tokens: tuple[tuple[int, ...], ...] | None = None
    asked_ns: tuple[int, ...] = ()
    name: str = ""

    @cached_property
    def owed(self) -> dict[Pair, int]:
        """Bytes of each pair of different servers that have any."""
        total: dict[Pair, int] = {}
        for src, row in zip(self.servers, self.sends, strict=True):
            for dst, size in zip(self.servers, row, strict=True):
                if src != dst and size:
                    total[src, dst] = total.get((src, dst), 0) + size
        return total


def assigned_parts(
    flows: Sequence[PacedFlow],
    exchange: Exchange,
    taken: dict[Pair, int],
    complete: Collection[Pair],
) -> list[PacedFlow]:
    """Return flows that carry successive parts of the bytes of their pair of servers.

    The sizes of planned flows are rounded one by one. So the last flow of a pair takes what is left
    of its bytes.

    Args:
        flows: The flows, as planned.
        taken: Bytes of each pair that earlier flows carry; the bytes of `flows` are added.
        complete: The pairs whose bytes no later flow carries.
    """
    final = {(flow.src, flow.dst): number for number, flow in enumerate(flows)}
    assigned = []
    for number, flow in enumerate(flows):
        pair = flow.src, flow.dst
        offset = taken.get(pair, 0)
        left = exchange.owed.get(pair, 0) - offset
        is_last = pair in complete and final[pair] == number
        size = left if is_last else min(flow.bytes, left)
        taken[pair] = offset + size
        assigned.append(replace(flow, bytes=size, offset=offset))
    return assigned
