"""Samples of a scrape, found by name and some labels."""

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples in the text of a scrape."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    @property
    def names(self) -> set[str]:
        """Names of all samples."""
        return {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """Return the only sample of a name with these labels, among others."""
        [value] = [
            sample.value
            for sample in self.samples
            if sample.name == f"moefabric_{name}" and labels.items() <= sample.labels.items()
        ]
        return value
