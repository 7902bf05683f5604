"""All-to-alls that programs ask for: who sends how many bytes to whom."""

from dataclasses import dataclass
from functools import cached_property

from moefabric.core.flows import PacedFlow


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
    def owed(self) -> dict[tuple[str, str], int]:
        """Bytes of each pair of different servers that have any."""
        total: dict[tuple[str, str], int] = {}
        for src, row in zip(self.servers, self.sends, strict=True):
            for dst, size in zip(self.servers, row, strict=True):
                if src != dst and size:
                    total[src, dst] = total.get((src, dst), 0) + size
        return total


def assigned_parts(
    flows: list[PacedFlow],
    owed: dict[tuple[str, str], int],
    taken: dict[tuple[str, str], int],
    *,
    last: bool,
) -> list[PacedFlow]:
    """Return flows that carry successive parts of the bytes of their pair of servers.

    The sizes of planned flows are rounded one by one. A pair's last flow takes what is left.

    Args:
        flows: The flows, as planned.
        owed: Bytes of each pair.
        taken: Bytes of each pair that other flows carry already; the flows' bytes are added.
        last: Whether no other flows follow, so that these carry all the rest.
    """
    final = {(flow.src, flow.dst): number for number, flow in enumerate(flows)} if last else {}
    assigned = []
    for number, flow in enumerate(flows):
        pair = flow.src, flow.dst
        offset = taken.get(pair, 0)
        left = owed.get(pair, 0) - offset
        size = left if final.get(pair) == number else min(flow.bytes, left)
        taken[pair] = offset + size
        assigned.append(PacedFlow(flow.src, flow.dst, flow.path, size, flow.rate_bps, offset))
    return assigned
