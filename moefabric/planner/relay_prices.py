"""Nearly optimal shares of paths, and a bound of the time, in a fixed number of cheap steps.

The least time in which paths carry a demand is the value of a zero-sum game: pairs choose paths,
and an opponent puts weight on links to make them dear. Both sides play predictive regret matching
(Farina, Kroer and Sandholm, AAAI'21); their averages approach the optimum from both sides.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from moefabric.planner.arrays import Array
from moefabric.planner.relay_paths import Indices

_ROUNDS: Final = 150
_FORWARDING_PRICE: Final = 1e-3
"""Price of forwarding, relative to the average price of a link."""


class Game:
    """The game of pairs against links.

    Args:
        incidence: Share of a path's bytes on each link [link, path], sparse.
        capacity: Bytes per unit of time of each link.
        pair: The pair of each path, in ascending order.
        due: Bytes of each path's pair, above zero.
        forwards: How often each path is forwarded; of equally dear paths, the least is best.
    """

    def __init__(
        self, incidence: Any, capacity: Array, pair: Indices, due: Array, forwards: Array
    ) -> None:
        from scipy.sparse import diags_array

        is_first = np.diff(pair, prepend=-1) > 0
        self._starts, self._group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        self._load_of: Any = (diags_array(1 / capacity) @ incidence).tocsr()
        self._price_of: Any = self._load_of.T.tocsr()
        self._due, self._links = due, len(capacity)
        self._forwarding_prices = forwards * (_FORWARDING_PRICE / len(capacity))

    def play(self) -> tuple[Array, Array]:
        """Return the shares of paths and the weights of links, averaged over all rounds.

        Later rounds, which are nearer to the optimum, count more.
        """
        starts, group, due = self._starts, self._group, self._due
        shares = 1.0 / np.bincount(group)[group]
        weights = np.full(self._links, 1 / self._links)
        path_regrets, link_regrets = np.zeros(len(due)), np.zeros(self._links)
        all_shares, all_weights = np.zeros(len(due)), np.zeros(self._links)
        loads = self._load_of @ (shares * due)
        for number in range(1, _ROUNDS + 1):
            regrets = loads - weights @ loads
            link_regrets = np.maximum(link_regrets + regrets, 0.0)
            predicted = np.maximum(link_regrets + regrets, 0.0)
            total = float(predicted.sum())
            weights = predicted / total if total else weights
            prices = self._price_of @ weights + self._forwarding_prices
            regrets = np.add.reduceat(shares * prices, starts)[group] - prices
            path_regrets = np.maximum(path_regrets + regrets, 0.0)
            predicted = np.maximum(path_regrets + regrets, 0.0)
            totals = np.add.reduceat(predicted, starts)[group]
            shares = np.where(totals > 0, predicted / np.where(totals > 0, totals, 1.0), shares)
            loads = self._load_of @ (shares * due)
            all_shares += number**2 * shares
            all_weights += number**2 * weights
        return all_shares / np.add.reduceat(all_shares, starts)[group], all_weights

    def bound(self, weights: Array) -> float:
        """Return a time below which no shares carry the demand, given any weights of links."""
        cheapest = np.minimum.reduceat(self._price_of @ np.maximum(weights, 0.0), self._starts)
        total = float(np.maximum(weights, 0.0).sum())
        return float(cheapest @ self._due[self._starts]) / total if total else 0.0

    def cheapest(self, weights: Array) -> NDArray[np.bool_]:
        """Return which path of each pair is cheapest, given weights of links."""
        prices = self._price_of @ np.maximum(weights, 0.0) + weights.sum() * self._forwarding_prices
        least: NDArray[np.bool_] = prices <= np.minimum.reduceat(prices, self._starts)[self._group]
        return least
