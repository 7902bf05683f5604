"""Cross-connects of an optical switch, and the interface of the crossbars that implement them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from moefabric.core.errors import FabricError


@dataclass(frozen=True)
class Ports:
    """Ports of an optical switch: inputs 1..N, outputs N+1..N+M."""

    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.outputs < 1:
            raise ValueError(f"{self}: a switch has an input and an output at least")

    def __str__(self) -> str:
        return f"{self.inputs}x{self.outputs}"

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
        return range(self.inputs + 1, self.inputs + self.outputs + 1)


@dataclass(frozen=True)
class CrossConnect:
    """Output of an input's light, and the instant from which it is lit (CLOCK_MONOTONIC, ns)."""

    out_port: int
    lit_at_ns: int


class Crossbar(Protocol):
    """Map from input ports to output ports that forwards frames."""

    @property
    def ports(self) -> Ports:
        """Ports of the crossbar."""

    def cross_connects(self) -> dict[int, CrossConnect]:
        """Return the cross-connects by input port; an input without light is absent."""

    def load(self, cross_connects: Mapping[int, CrossConnect]) -> None:
        """Replace all cross-connects at once.

        Raises:
            FabricError: for impossible ports; then nothing has changed.
        """

    def close(self) -> None:
        """Release the crossbar; its cross-connects stay."""


def check_cross_connects(ports: Ports, cross_connects: Mapping[int, CrossConnect]) -> None:
    """Check cross-connects before they are loaded.

    Raises:
        FabricError: if a port doesn't exist or an output has two inputs; lists all of them.
    """
    outputs = [cross_connect.out_port for cross_connect in cross_connects.values()]
    unknown_inputs = cross_connects.keys() - ports.input_set
    unknown_outputs = set(outputs) - ports.output_set
    if not unknown_inputs and not unknown_outputs and len(set(outputs)) == len(outputs):
        return
    valid = ports.output_numbers
    faults = [f"input {port} is not one of 1..{ports.inputs}" for port in sorted(unknown_inputs)]
    faults += [
        f"output {port} is not one of {valid[0]}..{valid[-1]}" for port in sorted(unknown_outputs)
    ]
    faults += [
        f"output {port} would have the light of {count} inputs"
        for port, count in sorted(Counter(outputs).items())
        if count > 1
    ]
    raise FabricError(f"crossbar {ports}: {'; '.join(faults)}")
