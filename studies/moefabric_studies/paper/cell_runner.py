"""Measures cells on emulated fabrics, one for each wiring of a job, at every NIC rate."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final

import moefabric
from moefabric.api import testbeds
from moefabric.api.networks import PACED, circuit_matrix
from moefabric.api.results import ProgressReporter, fabric_result
from moefabric.api.units import Units
from moefabric_studies.paper.emulation_setup import (
    WARM_UP_OPERATIONS,
    NetworkEmulation,
    at_nic_rate,
    layer_operations,
    network_emulation,
    region_fabric,
)
from moefabric_studies.paper.evaluation import RATES
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.measurements import (
    Cell,
    CellMeasurement,
    WaitTimes,
    cell_measurement,
    less_disturbed,
)

_ATTEMPTS: Final = 2
"""Attempts to measure a cell that ends in an error, each on a new fabric."""
_RECONFIGURED: Final = "mixnet"
"""Network whose reconfigurations are timed."""
_CHANGES: Final = 21
"""Timed reconfigurations for each settle time."""
_LONG_NS: Final = moefabric.NS_PER_S
"""Settle time from which on fewer reconfigurations are timed."""
_LONG_CHANGES: Final = 3


@dataclass
class CellRunner:
    """Runs cells and keeps their measurements.

    Attributes:
        jobs: jobs by name.
        reporter: receives progress, a step for each cell.
        units: keeps the measurements of cells that have ended.
        measurements: measurements by cell.
        lost: errors by cell.
    """

    jobs: Mapping[str, PaperJob]
    reporter: ProgressReporter
    units: Units = field(default_factory=Units)
    measurements: dict[Cell, CellMeasurement] = field(default_factory=dict)
    lost: dict[Cell, str] = field(default_factory=dict)

    def run_all(self, chosen: Iterable[Cell]) -> None:
        """Measure cells, again if other programs used the machine, or after an error."""
        for _, group in groupby(sorted(chosen, key=self._wiring), key=self._wiring):
            cells = list(group)
            for cell in cells:
                if str(cell) in self.units.results:
                    self._take(cell)
            remaining = [cell for cell in cells if cell not in self.measurements]
            for _ in range(_ATTEMPTS if remaining else 0):
                try:
                    self._run_on_one_fabric(remaining)
                except moefabric.AgentError as error:
                    remaining = [cell for cell in remaining if cell not in self.measurements]
                    self.lost |= dict.fromkeys(remaining, str(error))
                    self.reporter.show_message(str(error))
                else:
                    break

    def _take(self, cell: Cell, region: "_EmulatedRegion | None" = None) -> None:
        """Take the measurement of a cell, that of the region unless one is kept."""

        def measured() -> CellMeasurement:
            assert region is not None
            return region.measure(cell.rate_bps)

        self.measurements[cell] = self.units.value(str(cell), CellMeasurement, measured)
        self.lost.pop(cell, None)
        rate = moefabric.rate_text(cell.rate_bps)
        self.reporter.advance(f"{cell.job} on {cell.network} at {rate}")

    def _wiring(self, cell: Cell) -> tuple[str, str]:
        return cell.job, repr(network_emulation(self.jobs[cell.job], cell.network).wiring)

    def _run_on_one_fabric(self, cells: Sequence[Cell]) -> None:
        """Measure cells of one job on networks with the same wiring."""
        job = self.jobs[cells[0].job]
        networks = {cell.network: network_emulation(job, cell.network) for cell in cells}
        first = networks[cells[0].network]
        fabric = region_fabric(_fabric_name(), job, first)
        self.reporter.show_message(f"{job.name} on {', '.join(networks)}: {job.servers} servers")
        prepare = partial(_set_circuits, job, fabric, first.policy) if fabric.patch_panel else None
        with testbeds.running_testbed(fabric, transport=PACED, prepare=prepare) as testbed:
            wiring, fleet, controllers = testbed
            for network, emulation in networks.items():
                region = _EmulatedRegion(job, fabric, emulation, fleet, controllers, wiring.remarks)
                for cell in (cell for cell in cells if cell.network == network):
                    self._take(cell, region)


def _set_circuits(
    job: PaperJob, fabric: moefabric.Fabric, policy: str, controllers: testbeds.Controllers
) -> moefabric.CircuitSet:
    """Set the circuits for the job's demand, and return those that are lit."""
    return controllers.light_for(policy, job.demand(fabric.servers), fabric)


def _fabric_name() -> str:
    return f"paper-{os.getpid()}"


class _EmulatedRegion:
    """A job's region on one network, with its circuits lit and every connection used once."""

    def __init__(
        self,
        job: PaperJob,
        fabric: moefabric.Fabric,
        emulation: NetworkEmulation,
        fleet: testbeds.Fleet,
        controllers: testbeds.Controllers,
        remarks: tuple[str, ...],
    ) -> None:
        self._job, self._fabric, self._fleet, self._remarks = job, fabric, fleet, remarks
        self._policy_name, self._circuits = emulation.policy, moefabric.CircuitSet()
        self._policy = policy = moefabric.policy_named(emulation.policy)
        if fabric.optical:
            if not fabric.patch_panel:
                controllers.clear_circuits()
            self._circuits = _set_circuits(job, fabric, emulation.policy, controllers)
        is_moving = fabric.optical and policy.reconfigures
        self._controllers = controllers.under_policy(emulation.policy) if is_moving else {}
        scaled = at_nic_rate(fabric, job, RATES[0])
        with closing(self._executor(scaled)) as executor:
            executor.iteration(0, layer_operations(job, scaled)[:WARM_UP_OPERATIONS])

    def measure(self, rate_bps: float) -> CellMeasurement:
        """Measure the all-to-alls at this NIC rate, twice if disturbed or invalid."""
        scaled = at_nic_rate(self._fabric, self._job, rate_bps)
        first = self._measure(scaled)
        if first.is_undisturbed and not first.is_invalid:
            return first
        return less_disturbed(first, self._measure(scaled))

    def _executor(
        self, scaled: moefabric.Fabric, counters: testbeds.PortCounters | None = None
    ) -> testbeds.Executor:
        return testbeds.Executor(
            scaled,
            self._policy,
            self._fleet,
            self._controllers,
            self._circuits,
            instruments=testbeds.Instruments(counters=counters),
        )

    def _measure(self, scaled: moefabric.Fabric) -> CellMeasurement:
        """Measure once. Only all-to-alls are judged: pauses between them are no part of a table."""
        with (
            testbeds.port_counters(scaled) as counters,
            closing(self._executor(scaled, counters)) as executor,
            testbeds.CpuSampler() as cpu,
        ):
            run = replace(
                executor.iteration(0, layer_operations(self._job, scaled)), predicted_s=0.0
            )
        idle = testbeds.idle_shares(cpu.samples, executor.transfers.windows)
        result = fabric_result(
            scaled, scaled.name, self._policy_name, [run], cpu_idle=idle, remarks=self._remarks
        )
        return cell_measurement(result.to_json(), circuit_matrix(scaled.servers, executor.circuits))


def measure_waits(
    job: PaperJob, settle_times_ns: Iterable[int], reporter: ProgressReporter, units: Units
) -> dict[int, WaitTimes]:
    """Measure how long traffic waits for new circuits, in real time.

    Args:
        job: job whose demand the circuits are for.
        settle_times_ns: settle times of the OCS.
        reporter: receives progress, a step for each settle time.
        units: keeps the times of settle times that have ended.

    Returns:
        Times from the demand to traffic on all circuits, starting without light, by settle time.
    """
    waits = dict[int, WaitTimes]()
    for settle_ns in settle_times_ns:
        name = f"circuits that settle in {moefabric.duration_text(settle_ns)}"
        waits[settle_ns] = WaitTimes(tuple(units.result(name, partial(_waits_s, job, settle_ns))))
        reporter.advance(name)
    return waits


def _waits_s(job: PaperJob, settle_ns: int) -> list[float]:
    """Return how long traffic waits for new circuits of an OCS with this settle time, each time."""
    emulation = network_emulation(job, _RECONFIGURED)
    fabric = region_fabric(_fabric_name(), job, emulation, settle_ns)
    demand = job.demand(fabric.servers)
    with testbeds.running_testbed(fabric, transport=PACED) as (_, _, controllers):
        (controller,) = controllers.under_policy(emulation.policy).values()
        times_s = []
        for _ in range(_LONG_CHANGES if settle_ns >= _LONG_NS else _CHANGES):
            controllers.clear_circuits()
            times_s.append(controller.reconfigure(demand).phases.total_s)
    return times_s
