"""The event simulation of a program on servers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Final

from moefabric.core.errors import SpecError
from moefabric.core.routes import Route
from moefabric.execution.programs.placed_programs import Part, PlacedProgram
from moefabric.simulator.event_simulation import Step, simulate
from moefabric.simulator.fair_sharing import Stream
from moefabric.simulator.fluid import goodput_bps
from moefabric.workload.collectives.timing import DEFAULT_NVSWITCH_BPS

_NVSWITCH: Final = "nvswitch"
_Key = tuple[str, int, int]
"""Something that is simulated: a `step` of a rank, or a `part` of a transfer."""


class ProgramModel:
    """The event simulation of a program: max-min fair links, dependencies, NVSwitch ports.

    Messages of a connection follow one another. Connections that are paced keep to their pace.

    Args:
        placed: The program.
        greedy: Whether no connection is paced.

    Attributes:
        seconds: Model seconds until the last step has ended.
        step_ends_s: When each step ends, by rank.
    """

    def __init__(self, placed: PlacedProgram, *, greedy: bool = False) -> None:
        self._placed = placed
        self._fluid_s = None if greedy else placed.fluid_s
        receives = {
            step.transfer: [("step", rank, other) for other in step.after]
            for rank, steps in enumerate(placed.steps)
            for step in steps
            if step.kind in {"receive", "receive_add"} and step.transfer not in placed.early
        }
        waits: dict[_Key, list[_Key]] = {}
        steps_of: dict[_Key, Step] = {}
        for rank, steps in enumerate(placed.steps):
            for step in steps:
                key = ("step", rank, step.number)
                waits[key] = [("step", rank, other) for other in step.after]
                steps_of[key] = Step(seconds=step.duration_s)
                if step.transfer < 0:
                    continue
                parts = placed.parts[step.transfer]
                keys: list[_Key] = [("part", step.transfer, part.number) for part in parts]
                if step.kind == "send":
                    for part, part_key in zip(parts, keys, strict=True):
                        waits[part_key] = waits[key] + receives.get(step.transfer, [])
                        steps_of[part_key] = self._part_step(step.transfer, part)
                waits[key] = waits[key] + keys
        positions = {key: position for position, key in enumerate(_in_order(waits))}
        simulated = [
            replace(steps_of[key], after=tuple(sorted({positions[n] for n in waits[key]})))
            for key in positions
        ]
        links = {
            link: DEFAULT_NVSWITCH_BPS if _NVSWITCH in link else goodput_bps(placed.fabric, link)
            for step in simulated
            for stream in step.streams
            for link in stream.links
        }
        times = simulate(simulated, links)
        self.step_ends_s = [
            [times[positions["step", rank, step.number]].end_s for step in steps]
            for rank, steps in enumerate(placed.steps)
        ]
        self.seconds = max((end for ends in self.step_ends_s for end in ends), default=0.0)

    def _part_step(self, transfer: int, part: Part) -> Step:
        placed = self._placed
        source, target = placed.ends[transfer]
        size = part.size * placed.scale.bytes
        if not part.path:
            links: Route = ((f"gpu{source}", _NVSWITCH), (_NVSWITCH, f"gpu{target}"))
            return Step(streams=(Stream(size, links),), lane=("gpu", source))
        servers = placed.placement.servers
        connection = servers[source], servers[target], part.path
        pace_bps = inf
        if self._fluid_s:
            pace_bps = 8 * placed.connections[connection] * placed.scale.bytes / self._fluid_s
        streams = (Stream(size, placed.route(connection), pace_bps),)
        return Step(streams=streams, lane=connection)


def _in_order(waits: Mapping[_Key, Sequence[_Key]]) -> list[_Key]:
    """Return keys so that each follows those that it waits for."""
    order = TopologicalSorter[_Key](dict.fromkeys(waits, ()))
    for key, before in waits.items():
        order.add(key, *before)
    try:
        return list(order.static_order())
    except CycleError as error:
        fault = f"{len(error.args[1]) - 1} steps wait for each other and never start"
        raise SpecError([("program", fault)]) from error
