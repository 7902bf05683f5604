"""Fields of a controller's requests, and the refusals of malformed ones.

`moefabric.controller.service.northbound` documents them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from moefabric.config.guarded_policy import LIMIT_S
from moefabric.controller.client import MOST_PLAN_LIMIT_S
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError, some_of
from moefabric.core.topology import Fabric, Region
from moefabric.planner.horizon import Horizon

_MOST_BYTES: Final = 1e24
"""Far more than a cluster moves, and sums of it are finite."""
_MOST_COUNT: Final = 10**9


def parse_circuits(fabric: Fabric, region: Region, names: Any) -> CircuitSet:
    """Return the circuits of a request.

    Raises:
        SpecError: if one is malformed, or has an end that is not an optical NIC of the region.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError([("circuits", "a list of names such as s0/o0~s3/o2 is needed")])
    try:
        circuits = CircuitSet.of(names)
    except ValueError as error:
        raise SpecError([("circuits", str(error))]) from error
    optical = {nic for server in region.servers for nic in fabric.optical_nics(server)}
    if strange := sorted(map(str, circuits.nics - optical)):
        known = some_of([*map(str, sorted(optical))])
        fault = f"{', '.join(strange)}: not an optical NIC of {region.name}, which has {known}"
        raise SpecError([("circuits", fault)])
    return circuits


def check_keys(request: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a request with a key that isn't known, which may be a wrong spelling of one."""
    if unknown := next((key for key in request if key not in known), None):
        raise SpecError([(unknown[:40], f"is not a key here; keys are: {', '.join(known)}")])


def parse_demand(region: Region, request: Mapping[str, Any]) -> DemandMatrix:
    """Return the demand matrix of a request, whose servers are the region's by default."""
    if "demand" not in request:
        fault = "missing: a list of rows of bytes, from row's server to column's"
        raise SpecError([("demand", fault)])
    servers = request.get("servers", list(region.servers))
    if not isinstance(servers, list):
        raise SpecError([("servers", "a list of names is needed")])
    rows, n = request["demand"], len(servers)
    if isinstance(rows, list) and all(isinstance(row, list) for row in rows):
        lengths = list(map(len, rows))
        if len(set(lengths)) > 1:
            wrong = next(i for i, length in enumerate(lengths) if length != n)
            fault = f"{lengths[wrong]} numbers in this row, {n} servers need {n}"
            raise SpecError([(f"demand[{wrong}]", fault)])
    try:
        demand = DemandMatrix(tuple(map(str, servers)), request["demand"])
    except (ValueError, TypeError, OverflowError) as error:
        raise SpecError([("demand", str(error))]) from error
    if demand.array.max(initial=0.0) > _MOST_BYTES:
        raise SpecError([("demand", f"at most {_MOST_BYTES:g} bytes are possible")])
    return demand


def parse_limit_s(request: Mapping[str, Any]) -> float:
    """Return the seconds that a policy of another package may take."""
    limit_s = request.get("plan_limit_s", LIMIT_S)
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not limit_s > 0:
        raise SpecError([("plan_limit_s", f"seconds above zero are needed, not {limit_s!r}")])
    if limit_s > MOST_PLAN_LIMIT_S:
        raise SpecError([("plan_limit_s", f"at most {MOST_PLAN_LIMIT_S:g} s are possible")])
    return float(limit_s)


def parse_horizon(request: Mapping[str, Any]) -> Horizon | None:
    """Return the coming all-to-alls that a request names; None if it names none."""
    known = request.get("all_to_alls")
    if known is None:
        return None
    counts = known.values() if isinstance(known, dict) and set(known) == {"alike", "left"} else (0,)
    if not all(type(count) is int and 0 < count <= _MOST_COUNT for count in counts):
        raise SpecError([("all_to_alls", "two numbers above zero are needed, alike and left")])
    return Horizon(**known)
