"""Demand: bytes owed, server to server, in one collective; and the tokens that it comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Tokens = TypeVar("Tokens", np.int64, np.float64)


@dataclass(frozen=True)
class Placement:
    """Which rank and expert live on which server. Ranks and experts fill the servers in order, evenly, unless each rank's home is given.

    `servers` are those of one EP group. A rank is an expert-parallel rank: `tp` GPUs that share its tokens (paper section 5.2). `homes` are the
    servers of the ranks in order, by position; a rank's experts are at home with it.
    """

    servers: tuple[str, ...]
    ranks: int
    experts: int
    homes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.homes:
            if len(self.homes) != self.ranks or not set(self.homes) <= set(range(len(self.servers))):
                raise ValueError(f"{self.homes} are not the homes of {self.ranks} ranks")
            if self.experts % self.ranks:
                raise ValueError(f"{self.experts} experts don't fill {self.ranks} ranks evenly")
            return
        for what, count in (("ranks", self.ranks), ("experts", self.experts)):
            if count % len(self.servers):
                raise ValueError(f"{count} {what} don't fill {len(self.servers)} servers evenly")

    def tokens(self, gating: ArrayLike) -> NDArray[np.int64]:
        """Tokens [server, server] of a gating matrix [source rank, expert]."""
        matrix = np.asarray(gating, dtype=np.int64)
        if matrix.shape != (self.ranks, self.experts):
            raise ValueError(
                f"a gating matrix of {self.ranks} ranks x {self.experts} experts is needed, not {matrix.shape}"
            )
        return self.folded(matrix)

    def folded(self, matrix: NDArray[Tokens]) -> NDArray[Tokens]:
        """A matrix [rank, expert] as [server, server]."""
        n = len(self.servers)
        if not self.homes:
            even: NDArray[Tokens] = matrix.reshape(n, self.ranks // n, n, self.experts // n).sum(axis=(1, 3))
            return even
        ranked = matrix.reshape(self.ranks, self.ranks, -1).sum(axis=2)
        made: NDArray[Tokens] = np.zeros((n, n), dtype=matrix.dtype)
        np.add.at(made, np.ix_(self.homes, self.homes), ranked)
        return made

    def home(self, rank: int) -> int:
        """The position of the server that a rank is on."""
        return self.homes[rank] if self.homes else rank * len(self.servers) // self.ranks

    def largest(self, ranked: NDArray[np.float64]) -> tuple[float, ...]:
        """The largest value [rank] on each server; 0 where no rank is at home."""
        made = [0.0] * len(self.servers)
        for rank, value in enumerate(ranked.tolist()):
            made[self.home(rank)] = max(made[self.home(rank)], value)
        return tuple(made)


class DemandMatrix:
    """Bytes from each server (row) to each server (column) in one collective. What stays on a server is on the diagonal and free.

    `servers` gives the order of rows and columns. The array is copied and frozen.
    """

    def __init__(self, servers: Sequence[str], bytes_owed: ArrayLike) -> None:
        array = np.array(bytes_owed, dtype=np.float64)
        if array.shape != (len(servers), len(servers)):
            raise ValueError(
                f"{len(servers)} servers need a {len(servers)}x{len(servers)} matrix, not {array.shape}"
            )
        if not np.isfinite(array).all() or (array < 0).any():
            row, column = np.argwhere(~(np.isfinite(array) & (array >= 0)))[0]
            raise ValueError(f"[{row}][{column}]: {array[row, column]:g} is not a number of bytes")
        array.setflags(write=False)
        self.servers = tuple(servers)
        self.array: NDArray[np.float64] = array

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DemandMatrix)
            and self.servers == other.servers
            and np.array_equal(self.array, other.array)
        )

    def __hash__(self) -> int:
        return hash((self.servers, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"DemandMatrix({self.servers!r}, {self.array.tolist()!r})"

    def combine(self) -> "DemandMatrix":
        """The way back: tokens return to where they came from (paper section 5.1)."""
        return DemandMatrix(self.servers, self.array.T)

    def of(self, servers: Sequence[str]) -> "DemandMatrix":
        """What these servers owe each other: a region's part of all."""
        rows = [self._index[server] for server in servers]
        return DemandMatrix(servers, self.array[np.ix_(rows, rows)])

    @cached_property
    def _index(self) -> dict[str, int]:
        return {server: position for position, server in enumerate(self.servers)}

    @classmethod
    def apart(cls, groups: Sequence["DemandMatrix"]) -> "DemandMatrix":
        """All groups together, none of which owes another anything: the inverse of `of`."""
        servers = [server for group in groups for server in group.servers]
        array, at = np.zeros((len(servers), len(servers))), 0
        for group in groups:
            there = at + len(group.servers)
            array[at:there, at:there] = group.array
            at = there
        return cls(servers, array)

    def symmetric(self) -> NDArray[np.float64]:
        """D[i][j] = S[i][j] + S[j][i] with an empty diagonal: both directions of a circuit are lit together (section 5.2)."""
        both: NDArray[np.float64] = self.array + self.array.T
        np.fill_diagonal(both, 0.0)
        return both

    def pairs(self) -> Iterator[tuple[str, str, float]]:
        """(from, to, bytes) of every ordered pair of different servers that owe something."""
        for i, j in zip(*(each.tolist() for each in np.nonzero(self.array)), strict=True):
            if i != j:
                yield self.servers[i], self.servers[j], float(self.array[i, j])

    @property
    def total_bytes(self) -> float:
        """Bytes that leave a server."""
        return float(self.array.sum() - np.trace(self.array))

    @property
    def busiest_bytes(self) -> float:
        """The most that any one server has to send or to receive."""
        moving = self.array - np.diag(np.diag(self.array))
        return float(max(moving.sum(axis=0).max(initial=0), moving.sum(axis=1).max(initial=0)))
