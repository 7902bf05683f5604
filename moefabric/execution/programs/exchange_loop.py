"""Carries the all-to-alls of any program on a running fabric, when its ranks ask for them."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.guarded_policy import guarded_policy
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import LostBytesError, RanksLostError
from moefabric.core.exchange import Exchange
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.execution.executor import Executor
from moefabric.execution.iteration_state import IterationState
from moefabric.execution.programs.program_fabric import running_programs
from moefabric.execution.rank_calls import Calls
from moefabric.testbed.testbed import Controllers, connect_agents, data_paths, region_controllers
from moefabric.workload.iterations.iteration import Collective, Operation, Reconfigure


@dataclass(frozen=True)
class CarriedExchange:
    """An exchange that has ended.

    Attributes:
        seconds: Wall seconds from the first byte sent to the last one received.
        waited_s: Wall seconds that it waited for circuits.
        optical_bytes: Bytes that were planned to go by light.
        error: Why it failed; empty if all bytes arrived.
    """

    exchange: Exchange
    seconds: float = 0.0
    waited_s: float = 0.0
    optical_bytes: float = 0.0
    error: str = ""


class _QueuedCalls(Calls):
    """Queue of exchanges, whose first one belongs to the collective under way.

    Failed processes are left to the program's own supervision.
    """

    def __init__(self) -> None:
        self.queue: deque[Exchange] = deque()

    def receive(self, exchange: Exchange) -> None:
        self.queue.append(exchange)

    def exchange(self, state: IterationState, work: Collective) -> Exchange:  # noqa: ARG002
        return self.queue[0]


class ExchangeLoop:
    """Carries exchanges one after the other: demand, circuits, flows.

    Args:
        fleet: Agents of the fabric, connected with each other.
        policy: Chooses circuits for each exchange, and splits its bytes.
        lit: Circuits that a policy without reconfigurations uses.
    """

    def __init__(
        self, fabric: Fabric, fleet: Fleet, controllers: Controllers, policy: str, lit: CircuitSet
    ) -> None:
        self.wake = fleet.wake
        """Makes `run` ask whether the program has ended. Any thread may call it."""
        self.fabric, self._fleet, self._calls = fabric, fleet, _QueuedCalls()
        self._reconfigures = policy_named(policy).reconfigures
        self._executor = Executor(
            fabric,
            guarded_policy(policy),
            fleet,
            controllers.under_policy(policy) if self._reconfigures else {},
            lit,
            calls=self._calls,
        )
        self._count = 0

    def close(self) -> None:
        """End the background threads."""
        self._executor.close()

    def run(
        self, ended: Callable[[], bool], on_exchange: Callable[[CarriedExchange], object]
    ) -> None:
        """Carry exchanges until the program has ended.

        Args:
            ended: Returns whether the program has ended; `wake` makes this method ask again.
            on_exchange: Receives each exchange that has ended.
        """
        while not ended():
            self._fleet.wait_ended(None)
            for exchange in self._fleet.take_exchanges():
                self._calls.receive(exchange)
            while self._calls.queue and not ended():
                on_exchange(self._carry(self._calls.queue[0]))
                self._calls.queue.popleft()

    def _carry(self, exchange: Exchange) -> CarriedExchange:
        try:
            demand = self._demand(exchange)
        except ValueError as error:
            self._fleet.finish(exchange, str(error))
            return CarriedExchange(exchange, error=str(error))
        if not demand.total_bytes:
            self._fleet.finish(exchange)
            return CarriedExchange(exchange)
        operations: list[Operation] = [Collective("all-to-all", "forward", 0, demand)]
        if self._reconfigures:
            operations.insert(0, Reconfigure("forward", 0, demand))
        self._count += 1
        try:
            run = self._executor.iteration(self._count, operations)
        except (LostBytesError, RanksLostError) as error:
            self._executor.give_up()
            return CarriedExchange(exchange, error=str(error))
        parts, planned = run.collectives, [f for part in run.collectives for f in part.planned]
        return CarriedExchange(
            exchange,
            max(part.end_ns - part.start_ns for part in parts) / NS_PER_S,
            max(part.waited_ns for part in parts) / NS_PER_S,
            sum(flow.bytes for flow in planned if flow.is_optical) / self.fabric.scale.bytes,
        )

    def _demand(self, exchange: Exchange) -> DemandMatrix:
        """Return the bytes of the model between all servers; raises ValueError between regions."""
        for src, dst in exchange.owed:
            if self.fabric.region_of[src] != self.fabric.region_of[dst]:
                raise ValueError(f"{src} and {dst} are in different regions: give regions groups")
        sizes = ((*pair, size * self.fabric.scale.bytes) for pair, size in exchange.owed.items())
        return DemandMatrix.of_pairs(self.fabric.servers, sizes)


@contextmanager
def exchange_loop(name: str, policy: str) -> Iterator[ExchangeLoop]:
    """Prepare the agents of a fabric that is up for the exchanges of a program.

    Args:
        name: The fabric.

    Yields:
        The loop.

    Raises:
        FabricError: If the fabric isn't up, or another process uses it.
    """
    with ExitStack() as undo:
        programs = undo.enter_context(running_programs(name))
        fabric, fleet = programs.fabric, programs.fleet
        connect_agents(fabric, fleet, data_paths(fabric))
        controllers = undo.enter_context(closing(region_controllers(programs.wiring)))
        loop = ExchangeLoop(fabric, fleet, controllers, policy, controllers.circuits())
        undo.enter_context(closing(loop))
        fleet.ranks.start()
        undo.callback(fleet.ranks.stop)
        yield loop
