"""Policies of other packages, guarded: where one fails, its region's bytes take the EPS.

A policy may raise an exception, take too long, or return circuits and splits that can't be carried
out. None of that may stop a fabric. The built-in policies are not guarded, since the laws of
policies are tests of this project.
"""

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, TypeVar

from moefabric.config.plugins import POLICIES, built_in_names
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError, fault_text
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric, Region
from moefabric.planner import laws
from moefabric.planner.horizon import Horizon
from moefabric.planner.plan import with_horizon
from moefabric.planner.policy import EpsOnly, Policy

LIMIT_S: Final = 5.0
"""Seconds that a policy may take for circuits, and again for a split."""
_LOAD_LIMIT_S: Final = 15.0
"""Seconds that the import of a policy's module may take; some load large libraries."""
_MOST_TIMEOUTS: Final = 2
_REPEAT_S: Final = 0.1
"""Interval of further signals, if a policy has ignored the first one."""
_LIMIT_FILES: Final = {__file__, contextlib.__file__}
"""Code that a signal does not interrupt: it ends the limit."""

T = TypeVar("T")


class TimeIsUpError(BaseException):
    """Code of another package has taken too long.

    It is no Exception, so that code that catches all exceptions doesn't hide it.
    """


@dataclass
class _Faults:
    """The different failures of a policy in order, and how often it took too long."""

    texts: list[str] = field(default_factory=list)
    timeouts: int = 0


class GuardedPolicy:
    """A policy whose faults cost circuits, but not the fabric.

    A policy that has taken too long twice is not called again.

    Args:
        reference: The reference by which the policy was found.
        limit_s: Seconds that the policy may take for circuits, and again for a split.
    """

    def __init__(self, policy: Policy, reference: str, limit_s: float = LIMIT_S) -> None:
        self.policy, self.reference, self.limit_s = policy, reference, limit_s
        self._faults = _Faults()
        self.name, self.reconfigures = str(policy.name), bool(policy.reconfigures)
        self.forwards, self.splits_by_demand = bool(policy.forwards), bool(policy.splits_by_demand)
        self.suits_patch_panel = bool(policy.suits_patch_panel)

    @property
    def faults(self) -> tuple[str, ...]:
        """The different failures of the policy, in order."""
        return tuple(self._faults.texts)

    def with_horizon(self, horizon: Horizon) -> "GuardedPolicy":
        """Return the policy that knows the all-to-alls to come, if it weighs them.

        Both have the same faults.
        """
        known = copy(self)
        known.policy = with_horizon(self.policy, horizon)
        return known

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the policy's circuits, or none if it fails."""

        def choose() -> CircuitSet:
            chosen = self.policy.circuits(fabric, region, demand, current)
            chosen = laws.returned("circuits", CircuitSet, chosen)
            _refuse(laws.port_faults(fabric, region, chosen))
            _refuse(laws.service_faults(fabric, chosen))
            return chosen

        return self._guarded("circuits", choose, CircuitSet, fabric)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split as the policy does, or send all bytes over the EPS if it fails."""

        def divide() -> Split:
            split = laws.returned("split", Split, self.policy.split(fabric, demand, circuits))
            _refuse(laws.byte_faults(demand, split))
            _refuse(laws.light_faults(fabric, circuits, split))
            return split

        def over_eps() -> Split:
            return EpsOnly().split(fabric, demand, circuits)

        return self._guarded("split", divide, over_eps, fabric)

    def _guarded(
        self, method: str, call: Callable[[], T], instead: Callable[[], T], fabric: Fabric
    ) -> T:
        if self._faults.timeouts >= _MOST_TIMEOUTS:
            return instead()
        try:
            with time_limit(self.limit_s):
                return call()
        except TimeIsUpError:
            self._faults.timeouts += 1
            why = f"it took longer than {self.limit_s:g} s"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy of others may raise anything
            why = fault_text(error, laws.code_of(self.policy, method))
        fault = f"policy {self.reference} failed: {why}"
        if not fabric.leaves:
            raise SpecError([("", f"{fault}; there is no EPS to take its bytes")])
        if fault not in self._faults.texts:
            self._faults.texts.append(fault)
        return instead()


def guarded_policy(reference: str, limit_s: float = LIMIT_S) -> Policy:
    """Return a policy by its reference, guarded unless it is built in.

    Args:
        reference: Name of a policy, or `package.module:Name`.
        limit_s: Seconds that it may take for circuits, and again for a split.

    Raises:
        SpecError: If there is no such policy, or its module takes too long to load.
    """
    if reference in built_in_names(POLICIES):
        return policy_named(reference)
    try:
        with time_limit(_LOAD_LIMIT_S):
            policy = policy_named(reference)
    except TimeIsUpError:
        fault = f"{reference!r}: its module takes longer than {_LOAD_LIMIT_S:g} s to load"
        raise SpecError([("policy", fault)]) from None
    return GuardedPolicy(policy, reference, limit_s)


def policy_faults(policy: object) -> tuple[str, ...]:
    """Return the failures of a policy so far; built-in policies aren't guarded and have none."""
    return policy.faults if isinstance(policy, GuardedPolicy) else ()


def _refuse(faults: Iterable[str]) -> None:
    for fault in faults:
        raise ValueError(fault)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUpError in the main thread after some seconds; other threads have no limit.

    The signal interrupts Python code, and whatever waits, but no computation of a C library.
    """
    has_ended = False

    def raise_time_is_up(_number: int, frame: FrameType | None) -> None:
        # A signal while the limit ends would leave its timer running.
        is_ending = frame is not None and frame.f_code.co_filename in _LIMIT_FILES
        if not has_ended and not is_ending:
            raise TimeIsUpError

    try:
        handler = signal.signal(signal.SIGALRM, raise_time_is_up)
    except ValueError:  # Python handles signals in the main thread only
        yield
        return
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
    try:
        yield
    finally:
        has_ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
