"""The page `docs/mixnet-simulator.md`: the model beside the packet simulator of MixNet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from statistics import median
from typing import Final

import numpy as np

from moefabric.api.charts import deviation
from moefabric_studies.markdown import page_of
from moefabric_studies.oracle.mixnet.cases import (
    HASHED_BAND,
    HASHED_MEDIAN,
    HASHED_MEDIAN_BAND,
    Band,
    FloatArray,
    Group,
    JudgedCase,
    Network,
    band,
)
from moefabric_studies.oracle.mixnet.model import Answer, algorithm1_counts, answer
from moefabric_studies.oracle.mixnet.runs import JudgedResult, JudgedResults
from moefabric_studies.oracle.results import ORDER_MARGIN, quantile

Row = Sequence[object]

_TITLES: Final = {
    Network.FAT_TREE: "Fat tree",
    Network.ONE_SWITCH: "One switch",
    Network.MIXNET: "MixNet",
}
_STARTS: Final = ("all alike", "in turn")
_SHARES: Final = {1.0: "1", 1 / 8: "1/8", 1 / 64: "1/64"}


@dataclass(frozen=True)
class Comparison:
    """A case in the simulator and in the model.

    Attributes:
        result: The simulator's.
        answer: The model's.
        same_circuits: Whether both choose the same circuits; None on networks without.
    """

    result: JudgedResult
    answer: Answer
    same_circuits: bool | None

    @property
    def case(self) -> JudgedCase:
        """The case."""
        return self.result.case

    @property
    def error(self) -> float:
        """The model's time over theirs, less 1."""
        return self.answer.seconds / self.result.last_s - 1

    @property
    def null_error(self) -> float:
        """The null model's time over theirs, less 1."""
        return self.answer.null_s / self.result.last_s - 1

    @property
    def hashed_error(self) -> float | None:
        """The hashing model's time over theirs, less 1; None on networks without random paths."""
        hashed_s = self.answer.hashed_s
        return None if hashed_s is None else hashed_s / self.result.last_s - 1

    @property
    def band(self) -> Band:
        """Errors that were predicted before the simulator ran."""
        return band(self.case, self.answer.group)

    @property
    def holds(self) -> bool:
        """True if the error lies within `band`."""
        low, high = self.band
        return low <= self.error <= high


def comparisons(results: JudgedResults, by_name: Mapping[str, FloatArray]) -> list[Comparison]:
    """Return the model's answer beside each result.

    Args:
        results: The simulator's results.
        by_name: Bytes [server, server] of each demand by name.
    """
    return [_comparison(result, result.case.matrix(by_name)) for result in results.results]


def _comparison(result: JudgedResult, matrix: FloatArray) -> Comparison:
    counts = result.counts(len(matrix))
    same = (
        np.array_equal(counts, algorithm1_counts(result.case, matrix))
        if result.case.optical
        else None
    )
    return Comparison(result, answer(result.case, matrix, counts), same)


def hashed_ratio(compared: Sequence[Comparison]) -> float:
    """Return the median of their time over the model's, on fat trees in long cases."""
    return median(
        1 / (1 + c.error)
        for c in judged(compared)
        if c.answer.group is Group.FAT_TREE and not c.case.is_short
    )


def judged(compared: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons that bands were fixed for, without the experiment with rotation."""
    return [c for c in compared if not c.case.rotated]


def hashed_errors(
    compared: Iterable[Comparison], *, rotated: bool, short: bool
) -> list[tuple[float, float]]:
    """Return the errors on fat trees of the model that spreads evenly, and of the hashing one."""
    return [
        (c.error, c.hashed_error)
        for c in compared
        if c.hashed_error is not None and (c.case.rotated, c.case.is_short) == (rotated, short)
    ]


def text(results: JudgedResults, by_name: Mapping[str, FloatArray]) -> str:
    """Return the page in Markdown.

    Args:
        results: The simulator's results.
        by_name: Bytes [server, server] of each demand by name.
    """
    everything = comparisons(results, by_name)
    compared = judged(everything)
    long = [c for c in compared if not c.case.is_short]
    circuits = [c.error for c in long if c.answer.group is Group.CIRCUITS]
    trees = [1 / (1 + c.error) for c in compared if c.answer.group is Group.FAT_TREE]
    chosen = [c.same_circuits for c in compared if c.same_circuits is not None]
    return page_of(
        "oracle/mixnet/page.md.j2",
        source=results.source,
        cases=len(compared),
        groups=list(_groups(compared)),
        networks=[(name, list(_rows(part))) for name, part in _by_network(compared)],
        circuits=[deviation(of(circuits)) for of in (min, max)],
        tree=[f"{of(trees):.1f}" for of in (min, max)],
        order=list(_order(compared)),
        hashing=list(_hashing(everything)),
        rotation=list(_rotation(everything)),
        hashed_model=(HASHED_BAND, HASHED_MEDIAN_BAND),
        margin=f"{100 * ORDER_MARGIN:.0f} %",
        same=sum(chosen),
        chosen=len(chosen),
        hashed=f"{hashed_ratio(compared):.2f}",
        hashed_band=HASHED_MEDIAN,
        outside=list(_outside(compared)),
    )


def _groups(compared: Sequence[Comparison]) -> Iterator[Row]:
    columns = "in the band", "error p5", "median", "p95", "null model p5", "median", "p95"
    yield "cases", "sizes", "cases", "band", *columns
    key = lambda c: (list(Group).index(c.answer.group), c.case.is_short, c.band)  # noqa: E731
    for (number, short, (low, high)), part in groupby(sorted(compared, key=key), key):
        cases = list(part)
        errors, null = ([getattr(c, name) for c in cases] for name in ("error", "null_error"))
        spread = (deviation(quantile(e, q)) for e in (errors, null) for q in (0.05, 0.5, 0.95))
        held = f"{sum(c.holds for c in cases)} of {len(cases)}"
        limits = f"{deviation(low)} to {deviation(high)}"
        yield list(Group)[number], _sizes(short), len(cases), limits, held, *spread


def _by_network(compared: Sequence[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    key = lambda c: (list(Network).index(c.case.network), c.case.optical)  # noqa: E731
    for (number, optical), part in groupby(sorted(compared, key=key), key):
        circuits = f", {optical} of 8 NICs for circuits" if optical else ""
        yield f"{_TITLES[list(Network)[number]]}{circuits}", list(part)


def _rows(compared: Sequence[Comparison]) -> Iterator[Row]:
    yield "demand", "size", "NIC", "its time, ms", "model, ms", "error", "null model", "ends last"
    for c in compared:
        ends = sorted(1e3 * end for end in c.result.ends_s.values())
        spread = f" ({ends[0]:.4g} to {ends[-1]:.4g})" if len(ends) > 1 else ""
        error = deviation(c.error) if c.holds else f"**{deviation(c.error)}**"
        yield (
            c.case.demand,
            _SHARES[c.case.share],
            f"{c.case.rate_bps / 1e9:.0f} Gb/s",
            f"{1e3 * c.result.last_s:.4g}{spread}",
            f"{1e3 * c.answer.seconds:.4g}",
            error,
            deviation(c.null_error),
            c.answer.group,
        )


def _order(compared: Sequence[Comparison]) -> Iterator[Row]:
    """Yield whether both say that circuits are faster or slower than a network of packets."""
    yield "circuits compared with", "model", "pairs", "same order", "ratio: its median", "model's"
    by_case = {c.case: c for c in compared}
    for other, hashes in (
        (Network.FAT_TREE, False),
        (Network.FAT_TREE, True),
        (Network.ONE_SWITCH, False),
    ):
        pairs = [
            (c, by_case[replace(c.case, network=other, optical=0)])
            for c in compared
            if c.case.optical
        ]
        theirs = [a.result.last_s / b.result.last_s for a, b in pairs]
        base_s = [b.answer.hashed_s if hashes else b.answer.seconds for _, b in pairs]
        ours = [a.answer.seconds / s for (a, _), s in zip(pairs, base_s, strict=True) if s]
        apart = [(t, o) for t, o in zip(theirs, ours, strict=True) if abs(o - 1) > ORDER_MARGIN]
        agreed = sum((t > 1) is (o > 1) for t, o in apart)
        medians = f"{median(theirs):.2f}", f"{median(ours):.2f}"
        yield other, "hashes" if hashes else "spreads evenly", len(apart), agreed, *medians


def _hashing(compared: Sequence[Comparison]) -> Iterator[Row]:
    """Yield errors on fat trees of the model that spreads evenly and of the one that hashes."""
    columns = "spreads evenly: least", "median", "greatest", "hashes: least", "median", "greatest"
    yield "flows start", "sizes", "cases", *columns
    for rotated, short in product((True, False), (False, True)):
        errors = hashed_errors(compared, rotated=rotated, short=short)
        models = zip(*errors, strict=True)
        values = (deviation(of(model)) for model in models for of in (min, median, max))
        yield "in turn" if rotated else "all alike", _sizes(short), len(errors), *values


def _rotation(compared: Sequence[Comparison]) -> Iterator[Row]:
    """Yield errors on one switch where all servers begin with one receiver, and where not."""
    yield "demand", *(f"size {size}, {how}" for size in _SHARES.values() for how in _STARTS)
    by_case = {c.case: c for c in compared if c.case.network is Network.ONE_SWITCH}
    for case, comparison in by_case.items():
        if case.rotated and case.share == 1:
            cases = [
                replace(case, share=share, rotated=rotated)
                for share, rotated in product(_SHARES, (False, True))
            ]
            yield comparison.case.demand, *(deviation(by_case[c].error) for c in cases)


def _outside(compared: Sequence[Comparison]) -> Iterator[str]:
    """Yield demand and network of the cases that are outside their bands, with their errors."""
    key = lambda c: (c.case.network, c.case.demand)  # noqa: E731
    for (network, demand), part in groupby(sorted(compared, key=key), key):
        cases = list(part)
        errors = [c.error for c in cases if not c.holds]
        if errors:
            spread = f"{deviation(min(errors))} to {deviation(max(errors))}"
            yield f"{_TITLES[network]}, `{demand}`: {len(errors)} of {len(cases)}, {spread}"


def _sizes(short: bool) -> str:  # noqa: FBT001
    return "1/64" if short else "1, 1/8"
