"""A crew in memory: agents whose servers, and ranks on whose GPUs, die and come back when they are told to."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from moefabric.circuits import CircuitSet
from moefabric.errors import AgentError, LostError
from moefabric.experiment.memory import MemoryAgents, VirtualClock
from moefabric.records import FlowRecord
from moefabric.seams import PacedFlow
from moefabric.topology import Fabric

SILENCE_NS: Final = 2_000_000_000
"""How long nothing is heard of a server before it is held to be lost. Of a rank that dies one hears at once."""


class MemoryCrew(MemoryAgents):
    """Agents as those of `MemoryAgents`. `die` and `live` take the names of servers (`s3`) and of GPUs (`s1/3`)."""

    def __init__(self, fabric: Fabric, lit: Callable[[], CircuitSet], clock: VirtualClock) -> None:
        super().__init__(fabric, lit, clock)
        self.dead: set[str] = set()
        self._left: set[str] = set()
        self._heard: set[str] = set()
        self._held: set[int] = set()
        self._cut_off: Callable[[str], bool] = lambda _: False
        self.mended = 0
        """How often the connections of those that are left were asked to open again."""

    def die(self, *names: str) -> None:
        """These die, now."""
        self.dead |= set(names)

    def live(self, *names: str) -> None:
        """These live again; of servers one hears that by `returned`."""
        self.dead -= set(names)
        self._heard -= set(names)

    def arm(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> int:
        """As there; AgentError for servers that were left, LostError for those that don't answer."""
        if strange := _servers(flows) & self._left:
            raise AgentError(f"server {', '.join(sorted(strange))} has no agent")
        self._held.add(collective)
        self._refuse_the_lost(flows)
        return super().arm(collective, flows, start_ns, deadline_s)

    def collect(self, collective: int, flows: Sequence[PacedFlow], deadline_s: float) -> list[FlowRecord]:
        """As there; LostError where someone dies before all has arrived."""
        ends = max((record.last_received_ns for record in self._armed[collective]), default=0)
        while self.clock.now_ns() < ends:
            self.clock.sleep_until(min(ends, self.clock.next_ns or ends))
            self._refuse_the_lost(flows)
        self._held.discard(collective)
        return super().collect(collective, flows, deadline_s)

    def lost(self) -> tuple[frozenset[str], frozenset[str]]:
        """Servers that were left, and GPUs whose death was heard of."""
        self._heard |= {name for name in self.dead if "/" in name and name.split("/")[0] not in self._left}
        return frozenset(self._left), frozenset(self._heard)

    def heed(self, unreachable: Callable[[str], bool]) -> None:
        """Servers of which this says so are lost at once, and not back while it does."""
        self._cut_off = unreachable

    def leave(self, servers: Iterable[str]) -> None:
        """Go on without these."""
        self._left |= set(servers)

    def abandon(self, collective: int) -> None:
        """It is over. AgentError for one that wasn't under way."""
        if collective not in self._held:
            raise AgentError(f"collective {collective} is not under way")
        self._held.discard(collective)
        self._armed.pop(collective, None)

    def mend(self) -> None:
        """Connections are open again. AgentError while a collective is under way, LostError for servers that don't answer."""
        if self._held:
            raise AgentError(f"collectives {sorted(self._held)} are still under way")
        if silent := {name for name in self.dead - self._left if "/" not in name}:
            self.clock.sleep_until(self.clock.now_ns() + SILENCE_NS)
            raise LostError(f"{', '.join(sorted(silent))}: no answer", silent)
        self.mended += 1

    def returned(self) -> frozenset[str]:
        """Servers that live again since this was asked last."""
        back = frozenset(name for name in self._left - self.dead if not self._cut_off(name))
        self._left -= back
        return back

    def _refuse_the_lost(self, flows: Sequence[PacedFlow]) -> None:
        concerned = _servers(flows)
        cut_off = {name for name in concerned if self._cut_off(name)}
        servers = concerned & self.dead | cut_off
        gpus = {name for name in self.dead - self._heard if "/" in name and name.split("/")[0] in concerned}
        if not servers and not gpus:
            return
        if servers - cut_off:
            self.clock.sleep_until(self.clock.now_ns() + SILENCE_NS)
        self._heard |= gpus
        raise LostError(f"{', '.join(sorted(servers | gpus))}: lost", servers, gpus)


def _servers(flows: Sequence[PacedFlow]) -> set[str]:
    return {name for flow in flows for name in (flow.src, flow.dst)}
