"""Demand matrices (bytes owed in one collective), and the placement that maps tokens to them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Tokens = TypeVar("Tokens", np.int64, np.float64)


@dataclass(frozen=True)
class Placement:
    """The placement of one EP group's ranks and experts on servers.

    A rank is an expert-parallel rank: `tp` GPUs that share its tokens (paper section 5.2). Ranks
    and experts fill the servers in order, evenly, unless `homes` says where each rank is.

    Example:
        >>> placement = Placement(("s0", "s1"), ranks=2, experts=4)
        >>> placement.server_tokens([[5, 0, 2, 1], [0, 4, 3, 3]]).tolist()
        [[5, 3], [4, 6]]

    Attributes:
        servers: Servers of the EP group.
        ranks: Number of ranks.
        experts: Number of experts.
        homes: Position of each rank's server in `servers`. A rank's experts are on its server.

    Raises:
        ValueError: If servers can't share ranks or experts evenly, or `homes` doesn't fit them.
    """

    servers: tuple[str, ...]
    ranks: int
    experts: int
    homes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.homes:
            positions = set(range(len(self.servers)))
            if len(self.homes) != self.ranks or not set(self.homes) <= positions:
                raise ValueError(f"{self.homes} are not the homes of {self.ranks} ranks")
            if self.experts % self.ranks:
                raise ValueError(f"{self.experts} experts don't fill {self.ranks} ranks evenly")
            return
        for name, count in (("ranks", self.ranks), ("experts", self.experts)):
            if count % len(self.servers):
                raise ValueError(f"{count} {name} don't fill {len(self.servers)} servers evenly")

    def server_tokens(self, gating: ArrayLike) -> NDArray[np.int64]:
        """Sum a gating matrix by server.

        Args:
            gating: Tokens [source rank, expert].

        Returns:
            Tokens [server, server].

        Raises:
            ValueError: If the matrix isn't [rank, expert].
        """
        matrix = np.asarray(gating, dtype=np.int64)
        if matrix.shape != (self.ranks, self.experts):
            raise ValueError(
                f"a gating matrix of {self.ranks} ranks x {self.experts} experts is needed, "
                f"not {matrix.shape}"
            )
        return self.by_source(self.by_destination(matrix))

    def by_destination(self, matrix: NDArray[Tokens]) -> NDArray[Tokens]:
        """Sum a matrix [rank, expert] to [rank, server of the expert]."""
        n = len(self.servers)
        sums: NDArray[Tokens]
        if not self.homes:
            sums = matrix.reshape(self.ranks, n, self.experts // n).sum(axis=2)
            return sums
        sums = np.zeros((n, self.ranks), dtype=matrix.dtype)
        np.add.at(sums, list(self.homes), matrix.reshape(self.ranks, self.ranks, -1).sum(axis=2).T)
        return sums.T

    def by_source(self, matrix: NDArray[Tokens]) -> NDArray[Tokens]:
        """Sum a matrix [rank, server] to [server of the rank, server]."""
        n = len(self.servers)
        sums: NDArray[Tokens] = np.zeros((n, n), dtype=matrix.dtype)
        np.add.at(sums, [self.home(rank) for rank in range(self.ranks)], matrix)
        return sums

    def by_rank(
        self, tokens: NDArray[np.float64], copies: NDArray[np.float64]
    ) -> Mapping[tuple[str, ...], NDArray[np.float64]]:
        """Divide the copies that go to a server among its ranks, as the tokens of their experts.

        Args:
            tokens: Tokens [source rank, expert] that experts compute.
            copies: Copies [source rank, server] of tokens that go to a server.

        Returns:
            Copies [server, rank on it, server, rank on it] by the names of the servers; nothing if
            ranks don't fill the servers in order.
        """
        if self.homes:
            return {}
        n = len(self.servers)
        sent = tokens.reshape(self.ranks, n, self.ranks // n, -1).sum(axis=3)
        sent *= (copies / np.maximum(sent.sum(axis=2), np.finfo(float).tiny))[:, :, None]
        return {self.servers: sent.reshape(-1, self.ranks // n, *sent.shape[1:])}

    def home(self, rank: int) -> int:
        """Return the position of a rank's server."""
        return self.homes[rank] if self.homes else rank * len(self.servers) // self.ranks

    def max_by_server(self, values: NDArray[np.float64]) -> tuple[float, ...]:
        """Return the largest value [rank] on each server, 0 for a server without ranks."""
        largest = [0.0] * len(self.servers)
        for rank, value in enumerate(values.tolist()):
            largest[self.home(rank)] = max(largest[self.home(rank)], value)
        return tuple(largest)


class DemandMatrix:
    """Bytes from each server (row) to each server (column) in one collective.

    Bytes that stay on a server are on the diagonal and need no network. The array is copied and
    frozen.

    Example:
        >>> demand = DemandMatrix(("s0", "s1"), [[0, 3e9], [1e9, 0]])
        >>> list(demand.pairs())
        [('s0', 's1', 3000000000.0), ('s1', 's0', 1000000000.0)]
        >>> demand.combine().array.tolist()
        [[0.0, 1000000000.0], [3000000000.0, 0.0]]

    Attributes:
        servers: Names, in the order of rows and columns.
        array: Bytes [from, to].
        by_rank: Bytes or copies [server, rank on it, server, rank on it] of each EP group, by the
            names of its servers, of which a pair's proportions count; empty if they are unknown.
    """

    def __init__(
        self,
        servers: Sequence[str],
        bytes_owed: ArrayLike,
        by_rank: Mapping[tuple[str, ...], NDArray[np.float64]] | None = None,
    ) -> None:
        """Copy a matrix.

        Args:
            servers: Names, in the order of rows and columns.
            bytes_owed: Bytes [from, to].
            by_rank: How the ranks of servers share these bytes.

        Raises:
            ValueError: If the matrix isn't [server, server], or a cell is negative or not finite.
        """
        array, n = np.array(bytes_owed, dtype=np.float64), len(servers)
        if array.shape != (n, n):
            raise ValueError(f"{n} servers need a {n}x{n} matrix, not {array.shape}")
        if not np.isfinite(array).all() or (array < 0).any():
            row, column = np.argwhere(~(np.isfinite(array) & (array >= 0)))[0]
            raise ValueError(f"[{row}][{column}]: {array[row, column]:g} is not a number of bytes")
        array.setflags(write=False)
        self.servers = tuple(servers)
        self.array: NDArray[np.float64] = array
        self.by_rank = by_rank or {}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DemandMatrix)
            and self.servers == other.servers
            and np.array_equal(self.array, other.array)
            and self.by_rank.keys() == other.by_rank.keys()
            and all(np.array_equal(own, other.by_rank[key]) for key, own in self.by_rank.items())
        )

    def __hash__(self) -> int:
        return hash((self.servers, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"DemandMatrix({self.servers!r}, {self.array.tolist()!r})"

    def combine(self, ratio: float = 1.0) -> "DemandMatrix":
        """Return the demand of the combine: tokens return to their sources (paper section 5.1).

        Args:
            ratio: Bytes of a token on its way back, relative to those on its way there.
        """
        by_rank = {group: sent.transpose(2, 3, 0, 1) for group, sent in self.by_rank.items()}
        return DemandMatrix(self.servers, self.array.T * ratio, by_rank)

    def submatrix(self, servers: Sequence[str]) -> "DemandMatrix":
        """Return the demand between some of the servers, such as those of a region."""
        rows = [self.index[server] for server in servers]
        return DemandMatrix(servers, self.array[np.ix_(rows, rows)], self.by_rank)

    def within(self, servers: Sequence[str]) -> "DemandMatrix":
        """Return the demand between servers of which some may be lost; these owe nothing."""
        places = [place for place, server in enumerate(servers) if server in self.index]
        rows = [self.index[servers[place]] for place in places]
        array = np.zeros((len(servers), len(servers)))
        array[np.ix_(places, places)] = self.array[np.ix_(rows, rows)]
        return DemandMatrix(servers, array)

    @cached_property
    def index(self) -> dict[str, int]:
        """Each server's row and column."""
        return {server: position for position, server in enumerate(self.servers)}

    @classmethod
    def of_pairs(cls, servers: Sequence[str], owed: Iterable[tuple[str, str, float]]) -> Self:
        """Return the demand of pairs (from, to, bytes), as `pairs` yields; repeats are added."""
        demand = cls(servers, np.zeros((len(servers), len(servers))))
        array = demand.array.copy()
        for src, dst, size in owed:
            array[demand.index[src], demand.index[dst]] += size
        return cls(servers, array)

    @classmethod
    def sum_of(cls, parts: Sequence["DemandMatrix"]) -> "DemandMatrix":
        """Return the sum of one or more demands between the same servers."""
        return cls(parts[0].servers, np.sum([part.array for part in parts], axis=0))

    @classmethod
    def block_diagonal(cls, groups: Sequence["DemandMatrix"]) -> "DemandMatrix":
        """Join the demands of groups that owe each other nothing: the inverse of `submatrix`."""
        servers = [server for group in groups for server in group.servers]
        array, start = np.zeros((len(servers), len(servers))), 0
        for group in groups:
            end = start + len(group.servers)
            array[start:end, start:end] = group.array
            start = end
        by_rank = {names: sent for group in groups for names, sent in group.by_rank.items()}
        return cls(servers, array, by_rank)

    def symmetric(self) -> NDArray[np.float64]:
        """Return the bytes that each pair owes, both directions together, with a zero diagonal.

        D[i][j] = S[i][j] + S[j][i], since both directions of a circuit are lit together (paper
        section 5.2).
        """
        both: NDArray[np.float64] = self.array + self.array.T
        np.fill_diagonal(both, 0.0)
        return both

    def pairs(self) -> Iterator[tuple[str, str, float]]:
        """Yield (from, to, bytes) of every ordered pair of servers that owes something."""
        for i, j in np.argwhere(self.array).tolist():
            if i != j:
                yield self.servers[i], self.servers[j], float(self.array[i, j])

    @cached_property
    def rank_parts(self) -> Mapping[tuple[str, str], NDArray[np.float64]]:
        """Part of a pair's bytes [rank on the sender, rank on the receiver], of known pairs."""
        return {
            (servers[i], servers[j]): sent[i, :, j] / sent[i, :, j].sum()
            for servers, sent in self.by_rank.items()
            for i, j in np.argwhere(sent.sum(axis=(1, 3))).tolist()
        }

    @property
    def total_bytes(self) -> float:
        """Bytes that leave a server."""
        return float(self.array.sum() - np.trace(self.array))

    @property
    def port_bytes(self) -> NDArray[np.float64]:
        """The greater of the bytes that each server sends and of those that it receives."""
        moving = self.array - np.diag(np.diag(self.array))
        busier: NDArray[np.float64] = np.maximum(moving.sum(axis=0), moving.sum(axis=1))
        return busier
