"""Result of a sweep in sentences: which fabric is fastest where, by how much, how certain."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from moefabric.api.sweeps.results import column
from moefabric.api.sweeps.summary import PointFabric, Sample, SweepResult
from moefabric.report.formatting import counted, percentage, printable


def axis_names(axes: Sequence[str]) -> dict[str, str]:
    """Return a short name of each axis: its last key, or the whole place if two end alike.

    Example:
        >>> axis_names(["wiring.nic_rate", "wiring.regions[0].ocs.settle"])
        {'wiring.nic_rate': 'nic_rate', 'wiring.regions[0].ocs.settle': 'settle'}
    """
    last = {axis: axis.rpartition(".")[2] for axis in axes}
    often = Counter(last.values())
    return {axis: short if often[short] == 1 else axis for axis, short in last.items()}


def sweep_outcome(result: SweepResult) -> str:
    """Return which fabric has the least time at how many points, and where its lead is greatest.

    The first figure that is a time counts. Nothing is said of a sweep without one, or of one
    fabric. Means of single runs have no intervals, by which the lead would be certain.
    """
    name = next((name for name in result.spec.figures if name.endswith("_s")), None)
    leads = list(_leads(result.points, name)) if name else []
    return " ".join(_sentences(leads, name, result.spec.axes)) if name and leads else ""


def _leads(points: Sequence[PointFabric], name: str) -> Iterator[tuple[PointFabric, PointFabric]]:
    """Yield the fabrics with the two least means at each point that has two."""
    by_point = defaultdict[int, list[PointFabric]](list)
    for point in points:
        if point.figures[name].mean is not None:
            by_point[point.point].append(point)
    for fabrics in by_point.values():
        if len(fabrics) > 1:
            first, second, *_ = sorted(fabrics, key=lambda one: one.figures[name].mean or 0.0)
            yield first, second


def _sentences(
    leads: Sequence[tuple[PointFabric, PointFabric]], name: str, axes: Sequence[str]
) -> Iterator[str]:
    sure = [(first, second) for first, second in leads if _gain(first, second, name)]
    wins = Counter(printable(first.fabric) for first, _ in sure)
    texts = [f"{fabric} at {n}" for fabric, n in wins.most_common()]
    if equal := len(leads) - len(sure):
        texts.append(f"two alike at {equal}")
    title = column(name).title
    least = f"{title[0].lower()}{title[1:]}"
    yield f"Least {least}: {', '.join(texts)} of {counted(len(leads), 'point')}."
    if sure:
        first, second = max(sure, key=lambda pair: _gain(pair[0], pair[1], name))
        short = axis_names(axes)
        place = ", ".join(f"{short[axis]} {printable(first.values[axis])}" for axis in axes)
        lead = f"{percentage(_gain(first, second, name))} less than {printable(second.fabric)}"
        where = f" at {place}" if place else ""
        yield f"The greatest lead is that of {printable(first.fabric)}{where}: {lead}."
    if doubtful := sum(_is_doubtful(first, second, name) for first, second in sure):
        yield f"At {counted(doubtful, 'point')} the lead is less than its interval of 95 %."


def _gain(first: PointFabric, second: PointFabric, name: str) -> float:
    """Return the part by which the first mean is less than the second; 0 if both read alike."""
    less, more = first.figures[name].mean or 0.0, second.figures[name].mean or 0.0
    text = column(name).text
    return 0.0 if text(less) == text(more) else 1 - less / more


def _is_doubtful(first: PointFabric, second: PointFabric, name: str) -> bool:
    """Return whether the lead may be by chance. Runs of both fabrics are compared run by run."""
    less, more = first.figures[name], second.figures[name]
    if less.n == more.n:
        leads = Sample(tuple(b - a for a, b in zip(less.values, more.values, strict=True)))
        return leads.interval is not None and leads.interval[0] <= 0
    bounds = less.interval, more.interval
    return bounds[0] is not None and bounds[1] is not None and bounds[0][1] >= bounds[1][0]
