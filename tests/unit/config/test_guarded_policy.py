"""Policies that fail give their bytes to the EPS, and say why; timers of others go on."""

import signal
import threading
from dataclasses import replace
from time import monotonic

import pytest

from moefabric.config import guarded_policy as limits
from moefabric.config.guarded_policy import GuardedPolicy, guarded_policy, policy_faults
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.nic import Nic
from moefabric.planner.horizon import Horizon
from moefabric.planner.laws import Situation, situations
from moefabric.planner.mixnet import SPILL
from moefabric.planner.plan import plan, with_horizon
from moefabric.planner.policy import EpsOnly, Policy
from tests.support import faulty_policies
from tests.support.policies import POLICIES

UNIFORM: Situation = next(one for one in situations(4) if one.kind == "uniform")
MODULE = faulty_policies.__name__


def guarded(name: str, limit_s: float = 5.0) -> Policy:
    policy: Policy = getattr(faulty_policies, name)()
    return GuardedPolicy(policy, f"pkg:{name}", limit_s)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Raising", "ValueError: no idea"),
        ("Foreign", "ValueError: s77/o0, s78/o0: not an optical NIC of r0"),
        ("Listing", "TypeError: circuits() returned list, not a CircuitSet"),
        ("Losing", "bytes sent"),
    ],
)
def test_bytes_of_a_policy_that_fails_take_the_eps(name: str, why: str) -> None:
    policy, fabric = guarded(name), UNIFORM.fabric
    for _ in range(2):
        planned = plan(fabric, UNIFORM.region, UNIFORM.demand, policy, CircuitSet())
        split = planned.split
        if name == "Losing":
            assert split == EpsOnly().split(fabric, UNIFORM.demand, CircuitSet())
        else:
            assert not planned.circuits
        assert sum(share.eps_bytes for share in split) == sum(
            owed for _, _, owed in UNIFORM.demand.pairs()
        )
    (fault,) = policy_faults(policy)
    assert fault.startswith(f"policy pkg:{name} failed: ")
    assert why in fault
    assert "\n" not in fault


def test_fault_that_nothing_raised_names_where_the_policy_is_defined() -> None:
    policy, order = guarded("Foreign"), GuardedPolicy(faulty_policies.UNORDERED, "pkg:UNORDERED")
    for one in (policy, order):
        one.circuits(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())
    for one, code in (
        (policy, faulty_policies.Foreign.circuits.__code__),
        (order, faulty_policies.no_order.__code__),
    ):
        (fault,) = policy_faults(one)
        assert fault.endswith(f", {code.co_filename}:{code.co_firstlineno}")


def test_circuits_of_nics_out_of_service_are_refused() -> None:
    class Blind(faulty_policies.Raising):
        def circuits(self, *_: object) -> CircuitSet:
            return CircuitSet.of(["s0/o0~s1/o0"])

    policy = GuardedPolicy(Blind(), "pkg:Blind")
    fabric = UNIFORM.fabric.without_nics([Nic.parse("s1/o0")])
    assert not policy.circuits(fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())
    assert "s1/o0: out of service" in policy.faults[0]


def test_sound_policy_is_asked_as_ever() -> None:
    policy = guarded("Sound")
    planned, spill = (
        plan(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, p, CircuitSet())
        for p in (policy, SPILL)
    )
    assert (planned.circuits, planned.split) == (spill.circuits, spill.split)
    assert policy_faults(policy) == ()


def test_endless_policy_is_interrupted_and_after_two_times_not_called() -> None:
    policy, took_s = guarded("Endless", 0.05), []
    for _ in range(4):
        started_s = monotonic()
        chosen = policy.circuits(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())
        took_s.append(monotonic() - started_s)
        assert not chosen
    assert 0.05 <= took_s[0] < 2
    assert max(took_s[2:]) < 0.05
    assert policy_faults(policy) == ("policy pkg:Endless failed: it took longer than 0.05 s",)


def test_limit_leaves_handler_and_timer_as_they_were() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    before_s, _ = signal.getitimer(signal.ITIMER_REAL)
    guarded("Sound").circuits(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())
    assert signal.getsignal(signal.SIGALRM) is handler
    after_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert before_s - 5 < after_s <= before_s or before_s == 0 == after_s


def test_other_threads_plan_without_a_limit() -> None:
    chosen: list[CircuitSet] = []

    def choose() -> None:
        chosen.append(
            guarded("Sound").circuits(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())
        )

    thread = threading.Thread(target=choose)
    thread.start()
    thread.join()
    assert chosen[0] == SPILL.circuits(UNIFORM.fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())


def test_without_an_eps_there_is_nothing_to_fall_back_on() -> None:
    fabric = replace(UNIFORM.fabric, eps=None, electrical=0)
    with pytest.raises(SpecError, match=r"policy pkg:Raising failed: .*there is no EPS"):
        guarded("Raising").circuits(fabric, UNIFORM.region, UNIFORM.demand, CircuitSet())


def test_only_policies_of_others_are_guarded() -> None:
    assert guarded_policy("spill") is POLICIES["spill"]
    policy = guarded_policy(f"{MODULE}:Sound")
    assert isinstance(policy, GuardedPolicy)
    assert (policy.name, policy.reconfigures, policy.forwards) == ("raising", True, False)


def test_guarded_policy_still_weighs_what_is_to_come() -> None:
    known = with_horizon(GuardedPolicy(POLICIES["joint"], "pkg:Joint"), Horizon(3, 4))
    assert known.policy == replace(POLICIES["joint"], horizon=Horizon(3, 4))  # type: ignore[type-var]


def test_policy_whose_module_never_loads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moefabric.config.guarded_policy._LOAD_LIMIT_S", 0.1)
    with pytest.raises(SpecError, match=r"its module takes longer than 0\.1 s to load"):
        guarded_policy(f"{faulty_policies.__name__}:never")


def compute_forever() -> None:
    while True:
        sum(range(50))


def test_limit_leaves_no_timer_although_signals_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REPEAT_S", 50e-6)
    handler = signal.getsignal(signal.SIGALRM)
    timer = signal.getitimer(signal.ITIMER_REAL)
    for _ in range(500):
        with pytest.raises(limits.TimeIsUpError), limits.time_limit(0.0003):
            compute_forever()
        assert signal.getsignal(signal.SIGALRM) == handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (timer[0] > 0)
