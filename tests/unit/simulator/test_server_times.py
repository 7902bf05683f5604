"""Times inside servers: what moves between GPUs and NICs before and after an all-to-all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.nic import Nic
from moefabric.core.server_paths import ServerPaths
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import circuit_counts
from moefabric.planner.nic_assignment import assign_nics
from moefabric.simulator.server_times import ServerTimes, gather_and_scatter, pcie_switch
from tests.support.fabrics import MESH, fabric, lit_fabrics

NVLINK = 3.6e12
GB = 1e9


def on_paths(
    wired: Fabric, paths: ServerPaths | None = None, nvlink: float | None = NVLINK
) -> Fabric:
    return replace(wired, server_paths=paths or ServerPaths(), nvlink_rate_bps=nvlink)


def flows_of(wired: Fabric, lit: CircuitSet) -> list[Flow]:
    """Bytes over each circuit in both directions, and over the EPS for all other pairs."""
    ends = [pair for circuit in lit for pair in circuit.directions]
    light = [Flow(near.server, far.server, near.path, GB) for near, far in ends]
    joined = {(flow.src, flow.dst) for flow in light}
    pairs = [(a, b) for a in wired.servers for b in wired.servers if a != b]
    return light + [Flow(a, b, "e0", GB) for a, b in pairs if (a, b) not in joined]


def test_gpus_of_the_prototype_hand_three_quarters_to_those_next_to_a_circuit() -> None:
    """Four NICs and eight GPUs: two GPUs next to each NIC, which take the bytes of six others."""
    lit = CircuitSet.of(MESH)
    [light] = [flow for flow in flows_of(fabric(), lit) if (flow.src, flow.dst) == ("s0", "s1")]
    times = gather_and_scatter(on_paths(fabric()), lit, [light])
    handed_s = 0.75 * GB * 8 / (2 * NVLINK)
    assert (times.before_s, times.after_s) == pytest.approx((handed_s, handed_s))


def test_electrical_nics_next_to_all_gpus_need_nothing_handed_over() -> None:
    """However few flows stand for the bytes of all NICs."""
    wired = on_paths(fabric(0, 8))
    times = gather_and_scatter(wired, CircuitSet(), [Flow("s0", "s1", "e3", GB)])
    assert times.seconds == pytest.approx(0, abs=1e-12)


@given(lit_fabrics())
def test_infinite_nvlinks_take_no_time(lit_fabric: tuple[Fabric, CircuitSet]) -> None:
    wired, lit = lit_fabric
    sent = flows_of(wired, lit)
    assert gather_and_scatter(on_paths(wired, nvlink=None), lit, sent) == ServerTimes()
    free = on_paths(wired, ServerPaths(gather="none"))
    assert gather_and_scatter(free, lit, sent) == ServerTimes()


@given(lit_fabrics(), st.floats(0.1, 10))
def test_times_are_in_proportion_to_bytes_and_fall_with_the_rate(
    lit_fabric: tuple[Fabric, CircuitSet], factor: float
) -> None:
    wired, lit = lit_fabric
    sent = flows_of(wired, lit)
    times = gather_and_scatter(on_paths(wired), lit, sent)
    more = [replace(flow, bytes=factor * flow.bytes) for flow in sent]
    assert gather_and_scatter(on_paths(wired), lit, more).seconds == pytest.approx(
        factor * times.seconds
    )
    faster = gather_and_scatter(on_paths(wired, nvlink=factor * NVLINK), lit, sent)
    assert faster.seconds == pytest.approx(times.seconds / factor)


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_nics_that_are_equal_may_be_exchanged(near: list[int], far: list[int]) -> None:
    """Each has a GPU and a PCIe switch of its own, and each rate is the same."""
    wired = on_paths(fabric(8, 0, regions=(2,)))

    def times(ends: list[int], others: list[int]) -> ServerTimes:
        pairs = zip(ends[:3], others[:3], strict=True)
        lit = CircuitSet.of(f"s0/o{a}~s1/o{b}" for a, b in pairs)
        return gather_and_scatter(wired, lit, flows_of(wired, lit))

    first = times(list(range(8)), list(range(8)))
    assert first.seconds > 0
    assert times(near, far).seconds == pytest.approx(first.seconds)


def test_two_circuits_of_a_pair_on_one_numa_node_are_slower_than_on_two() -> None:
    """Algorithm 1 exchanges NICs for that (`permuteLinks`), and so does the assignment."""
    slow = ServerPaths(gather="pcie", numa_rate_bps=100e9)
    wired = on_paths(fabric(4, 4, regions=(2,)), slow)
    one_node = CircuitSet.of(["s0/o0~s1/o0", "s0/o1~s1/o1"])
    counts = circuit_counts(2, [(0, 1), (0, 1)])
    assigned = assign_nics(wired, wired.regions[0], counts, CircuitSet())
    crossing = gather_and_scatter(wired, one_node, flows_of(wired, one_node))
    half_s = GB * 8 / slow.numa_rate_bps
    assert crossing.before_s == pytest.approx(half_s), "half of 2 GB leaves the other node"
    permuted = gather_and_scatter(wired, assigned, flows_of(wired, assigned))
    within_s = 0.75 * GB * 8 / slow.pcie_rate_bps
    assert permuted.before_s == pytest.approx(within_s), "no byte, and 1/8 of 2 GB is next to a NIC"


@pytest.mark.parametrize(("other", "moved"), [("o1", 1.5), ("o2", 0.5)], ids=["one", "two"])
def test_nics_of_one_pcie_switch_share_its_link(other: str, moved: float) -> None:
    """Two NICs a switch; each of four switches has a quarter of 2 GB."""
    paths = ServerPaths(gather="pcie", pcie_switches=4, numa_rate_bps=1e15)
    wired = on_paths(fabric(8, 0, regions=(2,)), paths)
    lit = CircuitSet.of(["s0/o0~s1/o0", f"s0/{other}~s1/{other}"])
    times = gather_and_scatter(wired, lit, flows_of(wired, lit))
    assert times.before_s == pytest.approx(moved * GB * 8 / paths.pcie_rate_bps)


@pytest.mark.parametrize("optical", range(9))
def test_each_gpu_has_a_nic_if_there_are_as_many(optical: int) -> None:
    wired = on_paths(fabric(optical, 8 - optical))
    assert {pcie_switch(wired, nic) for nic in wired.nics("s0")} == set(range(8))


def test_forwarded_bytes_leave_by_the_nic_of_the_first_circuit() -> None:
    wired = on_paths(replace(fabric(2, 1, regions=(3,)), forwarding=True))
    lit = CircuitSet.of(["s0/o0~s1/o0", "s1/o1~s2/o0"])
    times = gather_and_scatter(wired, lit, [Flow("s0", "s2", "r1", GB)])
    direct = gather_and_scatter(wired, lit, [Flow("s0", "s1", "o0", GB)])
    assert times.before_s == direct.before_s > 0


def test_a_circuit_has_the_same_times_in_both_directions() -> None:
    wired, nic = on_paths(fabric()), Nic.parse
    lit = CircuitSet.of([Circuit(nic("s0/o1"), nic("s3/o2"))])
    there = gather_and_scatter(wired, lit, [Flow("s0", "s3", "o1", GB)])
    back = gather_and_scatter(wired, lit, [Flow("s3", "s0", "o2", GB)])
    assert (there.before_s, there.after_s) == (back.after_s, back.before_s)
