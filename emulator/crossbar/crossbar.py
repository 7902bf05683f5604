"""Cross-connects of an optical switch, and the interface of the crossbars that implement them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from moefabric.core.errors import FabricError


class PortsError(FabricError):
    """Cross-connects name a port that doesn't exist (`is_unknown`), or a port twice."""

    def __init__(self, message: str, *, is_unknown: bool) -> None:
        self.is_unknown = is_unknown
        super().__init__(message)


@dataclass(frozen=True)
class Ports:
    """Ports of an optical switch: inputs 1..N, outputs N+1..2N."""

    inputs: int
    """N."""

    def __str__(self) -> str:
        return f"{self.inputs}x{self.inputs}"

    @cached_property
    def input_set(self) -> frozenset[int]:
        """Numbers of the inputs as a set."""
        return frozenset(self.input_numbers)

    @cached_property
    def output_set(self) -> frozenset[int]:
        """Numbers of the outputs as a set."""
        return frozenset(self.output_numbers)

    @property
    def input_numbers(self) -> range:
        """Numbers of the inputs."""
        return range(1, self.inputs + 1)

    @property
    def output_numbers(self) -> range:
        """Numbers of the outputs."""
        return range(self.inputs + 1, 2 * self.inputs + 1)

    def check(self, pairs: Collection[tuple[int, int]]) -> None:
        """Check the ports of cross-connects.

        Args:
            pairs: input and output port of each.

        Raises:
            PortsError: if a port doesn't exist or occurs twice.
        """
        inputs, outputs = {p for p, _ in pairs}, {q for _, q in pairs}
        exist = inputs <= self.input_set and outputs <= self.output_set
        if exist and len(inputs) == len(outputs) == len(pairs):
            return  # fast path: most commands are valid, and finding the error is expensive
        _check_side("input", [p for p, _ in pairs], self.input_numbers)
        _check_side("output", [q for _, q in pairs], self.output_numbers)


def _check_side(side: str, numbers: Iterable[int], valid: range) -> None:
    """Raise PortsError for unknown ports of this side, and for duplicates."""
    times = Counter(numbers)
    if unknown := sorted(set(times) - set(valid)):
        listed = ", ".join(map(str, unknown))
        are = f"{side}s are {valid.start}..{valid.stop - 1}"
        raise PortsError(f"{listed}: {are}", is_unknown=True)
    if twice := sorted(number for number, n in times.items() if n > 1):
        raise PortsError(f"{side} {', '.join(map(str, twice))} twice", is_unknown=False)


Lights = Mapping[tuple[int, int], int]
"""By input and output port of a cross-connect, when it is lit from (CLOCK_MONOTONIC, ns)."""


class Crossbar(Protocol):
    """Map from input ports to output ports that forwards frames."""

    @property
    def ports(self) -> Ports:
        """Ports of the crossbar."""

    def cross_connects(self) -> dict[tuple[int, int], int]:
        """Return the cross-connects, as `load` takes them."""

    def load(self, cross_connects: Lights) -> None:
        """Replace all cross-connects at once.

        Raises:
            PortsError: for impossible ports; then nothing has changed.
        """

    def close(self) -> None:
        """Release the crossbar; its cross-connects stay."""
