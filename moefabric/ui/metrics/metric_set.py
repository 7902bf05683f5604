"""Samples of one scrape, grouped into families of Prometheus metrics."""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

PREFIX = "moefabric_"


class MetricSet:
    """Families of metrics; a name has the same label names in all its samples."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample of a quantity that goes up and down."""
        family = self._families.get(name)
        if family is None:
            family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
            self._families[name] = family
        assert isinstance(family, GaugeMetricFamily)
        family.add_metric(list(labels.values()), value)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample of a sum; `name` ends with `_total`."""
        family = self._families.get(name)
        if family is None:
            family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
            self._families[name] = family
        assert isinstance(family, CounterMetricFamily)
        family.add_metric(list(labels.values()), value)

    def histogram(
        self,
        name: str,
        text: str,
        bounds: Collection[float],
        classes: Sequence[int],
        total: float,
        **labels: str,
    ) -> None:
        """Add a histogram.

        Args:
            name: Name of the metric.
            text: What is observed.
            bounds: Upper bounds of the classes but the last.
            classes: Observations in each class.
            total: Sum of all observations.
            labels: Labels of the sample.
        """
        family = self._families.get(name)
        if family is None:
            family = HistogramMetricFamily(PREFIX + name, text, labels=list(labels))
            self._families[name] = family
        assert isinstance(family, HistogramMetricFamily)
        edges = [*map(floatToGoString, bounds), "+Inf"]
        buckets = list(zip(edges, map(float, accumulate(classes)), strict=True))
        family.add_metric(list(labels.values()), buckets, total)
