"""Light: which input of an optical switch shines into which output, and the seam to the mirrors that make it so."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from moefabric.errors import FabricError


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
        return frozenset(self.input_numbers)

    @cached_property
    def output_set(self) -> frozenset[int]:
        return frozenset(self.output_numbers)

    @property
    def input_numbers(self) -> range:
        return range(1, self.inputs + 1)

    @property
    def output_numbers(self) -> range:
        return range(self.inputs + 1, self.inputs + self.outputs + 1)


@dataclass(frozen=True)
class Light:
    """Where an input's light goes, and since (or from) when: CLOCK_MONOTONIC, ns."""

    out_port: int
    lit_at_ns: int


@dataclass(frozen=True)
class PortCounters:
    """What an input port has seen. A frame is what the kernel carries as one: up to 64 kB before segmentation."""

    forwarded_frames: int = 0
    forwarded_bytes: int = 0
    dropped_unlit: int = 0
    dropped_dark: int = 0


class Crossbar(Protocol):
    """Mirrors, moved together."""

    @property
    def ports(self) -> Ports:
        """How many there are."""

    def show(self) -> dict[int, Light]:
        """Light by input port; an input without light is absent."""

    def load(self, lights: Mapping[int, Light]) -> None:
        """Put exactly these in force, all at once. FabricError, and nothing moved, for ports that can't be."""

    def close(self) -> None:
        """Let go of them; what is lit stays lit."""


def impossible(ports: Ports, lights: Mapping[int, Light]) -> str | None:
    """Why these lights can't be: a port that isn't there, or two lights into one output."""
    into = Counter(light.out_port for light in lights.values())
    faults = [
        *(
            f"input {p} is not one of 1..{ports.inputs}"
            for p in sorted(lights)
            if p not in ports.input_numbers
        ),
        *(
            f"output {q} is not one of {ports.output_numbers.start}..{ports.output_numbers.stop - 1}"
            for q in sorted(into)
            if q not in ports.output_numbers
        ),
        *(f"output {q} would have the light of {n} inputs" for q, n in sorted(into.items()) if n > 1),
    ]
    return "; ".join(faults) or None


def check(ports: Ports, lights: Mapping[int, Light]) -> None:
    """FabricError, saying why, for lights that can't be."""
    outputs = {light.out_port for light in lights.values()}
    if len(outputs) == len(lights) and outputs <= ports.output_set and lights.keys() <= ports.input_set:
        return  # most loads are right, and a reason takes longer to find than a load takes
    if why := impossible(ports, lights):
        raise FabricError(f"crossbar {ports}: {why}")


class MemoryCrossbar:
    """A crossbar without a kernel: the same ports, dark time and refusals, for people without root."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self._lights: dict[int, Light] = {}
        self._counters = {port: PortCounters() for port in ports.input_numbers}

    def show(self) -> dict[int, Light]:
        return dict(self._lights)

    def load(self, lights: Mapping[int, Light]) -> None:
        check(self.ports, lights)
        self._lights = dict(lights)

    def forward(self, in_port: int, length_bytes: int, now_ns: int) -> int | None:
        """The output port that a frame entering now leaves by; None where it is dropped."""
        seen, light = self._counters[in_port], self._lights.get(in_port)
        counted = vars(seen).copy()
        if light is None:
            counted["dropped_unlit"] += 1
        elif now_ns < light.lit_at_ns:
            counted["dropped_dark"] += 1
        else:
            counted["forwarded_frames"] += 1
            counted["forwarded_bytes"] += length_bytes
        self._counters[in_port] = PortCounters(**counted)
        return light.out_port if light is not None and now_ns >= light.lit_at_ns else None

    def close(self) -> None:
        """Nothing is held."""

    def counters(self) -> dict[int, PortCounters]:
        """What each input port has seen."""
        return dict(self._counters)
