"""Recovery from lost servers and GPUs: backups take their places (paper section 5.4).

Recovery from network failures happens below the job: connections persist, and a collective ends
later.
"""

from collections.abc import Callable, Collection, Iterable

from moefabric.core.errors import ServerLossError
from moefabric.core.failures import FailurePhase
from moefabric.core.protocols import Agents
from moefabric.core.topology import Fabric
from moefabric.execution.observer import Observers, RunObserver
from moefabric.workload.iterations import substitution


class Recovery:
    """Lost servers and GPUs, and the backups that work in their places."""

    def __init__(self, fabric: Fabric, agents: Agents, observer: RunObserver | None = None) -> None:
        self.fabric, self._agents, self._observer = fabric, agents, observer or Observers()
        self.lost, self.substitutions = substitution.Losses(), substitution.Substitutions()

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The servers that work for each region."""
        return substitution.working_groups(self.fabric, self.substitutions)

    def substitutes(self, regions: Collection[str]) -> bool:
        """Return whether backups work for servers or GPUs of these regions."""
        substitutions = (
            *self.substitutions.servers,
            *(gpu.server for gpu in self.substitutions.gpus),
        )
        return any(self.fabric.region_of[server].name in regions for server in substitutions)

    def update(self, busy: Collection[str] = ()) -> None:
        """Find out which servers are lost and which are back, and assign backups.

        Regions that are `busy` in an iteration keep their backups until it ends. Raises
        NoBackupError if a lost component has no backup.
        """
        try:
            self._agents.readmit()
        except ServerLossError as loss:
            self.drop(loss)
        servers, gpus = self._agents.losses()
        self.lost = substitution.Losses(_gpus(gpus), servers)
        region_of = self.fabric.region_of
        in_use = substitution.Losses(
            frozenset(gpu for gpu in self.substitutions.gpus if region_of[gpu.server].name in busy),
            frozenset(name for name in self.substitutions.servers if region_of[name].name in busy),
        )
        self.substitutions = substitution.find_substitutes(
            self.fabric, self.lost | in_use, self.substitutions
        )

    def drop(
        self, loss: ServerLossError, abandon: Callable[[substitution.Losses], None] = lambda _: None
    ) -> substitution.Losses:
        """Drop the lost servers, reconnect those that remain, and return all losses.

        Args:
            loss: The first loss.
            abandon: Ends the transfers of the jobs that a loss concerns.
        """
        lost = more = lost_components(loss)
        while True:
            self._agents.drop(more.servers)
            abandon(more)
            try:
                self._agents.reconnect()
            except ServerLossError as further:
                more = lost_components(further)
                if not more.servers - lost.servers:
                    raise
                self.log("detected", more, str(further))
                lost |= more
            else:
                return lost

    def log(self, phase: FailurePhase, lost: substitution.Losses, why: str) -> None:
        """Log a phase of losses."""
        named = {"server": sorted(lost.servers), "gpu": list(map(str, sorted(lost.gpus)))}
        for kind, names in named.items():
            if names:
                self._observer.failure_logged(phase, kind, names, why)


def lost_components(loss: ServerLossError) -> substitution.Losses:
    """Return the servers and GPUs that a loss names."""
    return substitution.Losses(_gpus(loss.gpus), loss.servers)


def _gpus(names: Iterable[str]) -> frozenset[substitution.Gpu]:
    return frozenset(map(substitution.Gpu.parse, names))
