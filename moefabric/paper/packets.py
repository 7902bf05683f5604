"""The paper's regions on packets: each network brought up once a job, its all-to-alls replayed at every rate; and light moved under the clock."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final

from agents.fleet import Fleet
from controller.planner.plan import policy_named
from controller.planner.policy import counted
from moefabric.circuits import CircuitSet
from moefabric.console import Reporter
from moefabric.demand import DemandMatrix
from moefabric.errors import AgentError
from moefabric.experiment.cpu import CpuSampler, idle_while
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import result
from moefabric.experiment.run import CONGESTION
from moefabric.experiment.sending import Policy
from moefabric.experiment.testbed import Lights, standing
from moefabric.paper.job import Job
from moefabric.paper.scene import RATES
from moefabric.paper.seen import Cell, Seen, better, seen
from moefabric.paper.stage import COLD, Emulation, Rails, at, emulation, fabric, operations
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S, duration_text, rate_text

TRIES: Final = 2
"""How often a fabric is brought up for cells that end in a fault."""
_LIT: Final = "mixnet"
"""The network whose light is moved under the clock."""
_MOVES: Final = 9
_LONG_NS: Final = NS_PER_S
"""How often, for each settle time; once for one as long as this."""


@dataclass
class Measuring:
    """Cells as they are measured. `lost`: what was said of those that ended in a fault."""

    jobs: Mapping[str, Job]
    reporter: Reporter
    found: dict[Cell, Seen] = field(default_factory=dict)
    lost: dict[Cell, str] = field(default_factory=dict)

    def all(self, cells: Iterable[Cell]) -> None:
        """Every cell: once, or twice where others used the machine meanwhile or something broke."""
        for _, group in groupby(sorted(cells, key=self._wiring), key=self._wiring):
            left = list(group)
            for _ in range(TRIES):
                try:
                    self._on_one_wiring(left)
                except AgentError as fault:
                    left = [cell for cell in left if cell not in self.found]
                    self.lost |= dict.fromkeys(left, str(fault))
                    self.reporter.say(str(fault))
                else:
                    break

    def _wiring(self, cell: Cell) -> tuple[str, str]:
        return cell.job, repr(emulation(self.jobs[cell.job], cell.network).wiring)

    def _on_one_wiring(self, cells: Sequence[Cell]) -> None:
        """Cells of one job on networks that are wired alike."""
        job = self.jobs[cells[0].job]
        networks = {cell.network: emulation(job, cell.network) for cell in cells}
        first = networks[cells[0].network]
        wired = fabric(_name(), job, first.wiring)
        self.reporter.say(f"{job.name} on {', '.join(networks)}: {job.servers} servers")
        lay = partial(_laid, job, wired, first.policy) if wired.panel else None
        with standing(wired, congestion=CONGESTION["paced"], lay=lay) as (up, fleet, lights):
            for network, made in networks.items():
                stage = _Stage(job, wired, made, fleet, lights, up.remarks)
                for cell in cells:
                    if cell.network == network:
                        self.found[cell] = stage.seen(cell.rate_bps)
                        self.lost.pop(cell, None)
                        self.reporter.step(f"{job.name} on {network} at {rate_text(cell.rate_bps)}")


def _laid(job: Job, wired: Fabric, policy: str, lights: Lights) -> CircuitSet:
    """Light for the job's demand, and what is lit then; on a panel, what was laid."""
    return lights.reconfigure(policy, DemandMatrix(wired.servers, job.owed), wired)


def _name() -> str:
    """A name that no other process' fabric has."""
    return f"paper-{os.getpid()}"


class _Stage:
    """A job's region on one network: lit, and every connection used once."""

    def __init__(
        self,
        job: Job,
        wired: Fabric,
        made: Emulation,
        fleet: Fleet,
        lights: Lights,
        remarks: tuple[str, ...],
    ) -> None:
        self._job, self._wired, self._fleet, self._remarks = job, wired, fleet, remarks
        self._name, planned, self._lit = made.policy, policy_named(made.policy), CircuitSet()
        self._policy: Policy = Rails(job, wired.servers, planned) if wired.rails else planned
        if wired.optical:
            if not wired.panel:
                lights.dark()
            self._lit = _laid(job, wired, made.policy, lights)
        self._lights = lights.under(made.policy) if wired.optical and planned.moves else {}
        first = at(wired, job, RATES[0])
        with closing(self._replay(first)) as cold:
            cold.iteration(0, operations(job, first)[:COLD])

    def seen(self, rate_bps: float) -> Seen:
        """The all-to-alls at this rate; again, where others used the machine."""
        made = at(self._wired, self._job, rate_bps)
        first = self._replayed(made)
        return first if first.believed else better(first, self._replayed(made))

    def _replay(self, made: Fabric) -> Replay:
        return Replay(made, self._policy, self._fleet, self._lights, self._lit)

    def _replayed(self, made: Fabric) -> Seen:
        with closing(self._replay(made)) as replay, CpuSampler() as cpu:
            run = replay.iteration(0, operations(self._job, made))
        idle = idle_while(cpu.samples, replay.windows)
        entry = result(made, made.name, self._name, [run], cpu_idle=idle, remarks=self._remarks)
        return seen(entry, counted(made.servers, replay.circuits))


def waits(job: Job, settles_ns: Iterable[int], reporter: Reporter) -> dict[int, float]:
    """By the OCS's settle time: seconds from the demand that comes in to traffic on all of its circuits, from the dark.

    The least of a few moves: what else the machine does only adds to it.
    """
    made, found = emulation(job, _LIT), dict[int, float]()
    for settle_ns in settles_ns:
        wired = fabric(_name(), job, made.wiring, settle_ns)
        demand = DemandMatrix(wired.servers, job.owed)
        with standing(wired, congestion=CONGESTION["paced"]) as (_, _, lights):
            (light,) = lights.under(made.policy).values()
            took = []
            for _ in range(1 if settle_ns >= _LONG_NS else _MOVES):
                lights.dark()
                took.append(light.reconfigure(demand).phases.total_s)
            found[settle_ns] = min(took)
        reporter.step(f"light that settles in {duration_text(settle_ns)}")
    return found
