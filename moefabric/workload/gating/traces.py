"""Gating traces (which tokens of which rank go to which expert), their repetition and noise."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""Numbers of tokens."""
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GatingTrace:
    """Tokens that each rank sends each expert.

    Attributes:
        tokens: Counts [iteration, layer, source rank, expert], int64, frozen. A single matrix is
            one iteration of one layer.
        source: Where the trace comes from.
        top_k: The numbers of experts that tokens have; empty if single tokens aren't known.

    Raises:
        ValueError: If the array has other dimensions, is empty, or has a negative count.
    """

    tokens: Counts
    source: str = ""
    top_k: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        array = np.array(self.tokens, dtype=np.int64)
        if array.ndim != 4 or not array.size:
            raise ValueError(f"shape {array.shape} is not iterations x layers x ranks x experts")
        if (array < 0).any():
            cell = "".join(f"[{i}]" for i in np.argwhere(array < 0)[0])
            raise ValueError(f"{cell}: {array[array < 0][0]} tokens: counts must not be negative")
        array.setflags(write=False)
        object.__setattr__(self, "tokens", array)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of each expert in the tokens of each rank, all of which have tokens."""
        shares: NDArray[np.float64] = self.tokens / self.tokens.sum(axis=-1, keepdims=True)
        return shares

    def matrix(self, iteration: int, layer: int) -> Counts:
        """Return the tokens [source rank, expert] of one layer in one iteration.

        A trace repeats by iteration and by layer.
        """
        iterations, layers = self.tokens.shape[:2]
        matrix: Counts = self.tokens[iteration % iterations, layer % layers]
        return matrix


def repeat_tokens(tokens: Counts, ranks: int, experts: int, seed: int) -> Counts:
    """Repeat gating for more ranks and experts.

    Ranks are repeated in order: the ranks of a trace of one rank are all alike. Copies of experts
    are shuffled, the same way for all ranks, layers and iterations. In order, each server would
    have as many copies of every expert as the others, and no server would be busier. Shuffled
    copies still make servers more alike than experts are: `repeat_for_servers` checks by how much.

    Args:
        tokens: Tokens [..., rank, expert].
        ranks: Ranks of the result.
        experts: Experts of the result.
        seed: Seed of the shuffle.
    """
    rows = tokens[..., np.arange(ranks) % tokens.shape[-2], :]
    columns = np.arange(experts) % tokens.shape[-1]
    if experts > tokens.shape[-1]:
        columns = np.random.default_rng(seed).permutation(columns)
    return rows[..., columns]


def server_skew(tokens: Counts, servers: int) -> float:
    """Return the tokens of the busiest server, relative to the mean over servers.

    Experts fill the servers in order, evenly. The result is the median over layers and iterations.

    Args:
        tokens: Tokens [..., rank, expert].
        servers: Number of servers, of which the number of experts is a multiple.
    """
    loads = tokens.sum(axis=-2).reshape(-1, servers, tokens.shape[-1] // servers).sum(axis=2)
    means = np.maximum(loads.mean(axis=1), 1e-300)
    return float(np.median(loads.max(axis=1) / means))


MOST_FLATTENING: Final = 0.5
"""Part of the recorded skew that repetition may remove."""


def repeat_for_servers(tokens: Counts, ranks: int, experts: int, servers: int, seed: int) -> Counts:
    """Repeat gating as `repeat_tokens` does, unless that makes servers alike.

    Args:
        tokens: Tokens [..., rank, expert].
        ranks: Ranks of the result.
        experts: Experts of the result.
        servers: Servers, which ranks and experts of the result fill in order.
        seed: Seed of the shuffle.

    Raises:
        ValueError: If the trace has more experts than the result, which would lose their tokens.
        ValueError: If less than `1 - MOST_FLATTENING` of the excess of `server_skew` over 1
            remains. It isn't checked if experts of the trace can't fill the servers evenly.
    """
    recorded = tokens.shape[-1]
    if recorded > experts:
        lost = f"the trace has {recorded} experts, and the model {experts}"
        raise ValueError(f"{lost}: use a trace of at most {experts}, or gating.fit")
    repeated = repeat_tokens(tokens, ranks, experts, seed)
    if experts == recorded or recorded % servers or experts % servers:
        return repeated
    before, after = server_skew(tokens, servers), server_skew(repeated, servers)
    if after - 1 < (1 - MOST_FLATTENING) * (before - 1):
        busiest = f"the busiest server has {after:.2f} times the mean instead of {before:.2f}"
        remedy = f"use a trace of {experts} experts, or another seed"
        raise ValueError(f"with copies of {recorded} experts {busiest}: {remedy}")
    return repeated


def add_noise(gating: Counts, sigma: float, seed: int, place: tuple[int, ...]) -> Counts:
    """Vary a gating matrix at random, for one layer of a region in one iteration.

    Each expert's popularity, and then each rank's share of each expert, is multiplied by
    exp(N(0, sigma)). Rows keep their sums to within rounding: every token still has its top-k
    experts. A sigma of 0.1 moves 5 to 7 % of a row's tokens to other experts, as much as two steps
    of a training run differ.

    Args:
        gating: Tokens [rank, expert].
        sigma: Standard deviation; 0 returns the matrix unchanged.
        seed: Seed of the random numbers.
        place: (iteration, layer, region), and the micro-batch unless it is the first. Each place
            has a random stream of its own, so that more regions change nothing in the others.

    Returns:
        Tokens [rank, expert].
    """
    if not sigma:
        return gating
    random = np.random.default_rng([seed, *place])
    popularity = np.exp(random.normal(0.0, sigma, gating.shape[1]))
    shares = gating * popularity * np.exp(random.normal(0.0, sigma, gating.shape))
    sums = shares.sum(axis=1, keepdims=True)
    scaled = shares / np.where(sums > 0, sums, 1.0) * gating.sum(axis=1, keepdims=True)
    noisy: Counts = np.rint(scaled).astype(np.int64)
    return noisy
