"""Proposed scale: frames within the cores' speed, and transfers of measurable length."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moefabric.config.loader import load_experiment
from moefabric.core.machine_speed import (
    DATAPATH_COSTS,
    LEAST_SEGMENTS,
    MachineSpeed,
    fabric_frame_segments,
    frame_bits,
    frame_segments,
)
from moefabric.core.topology import Fabric, capacity_bps
from moefabric.core.units import QueueLimit, Scale
from moefabric.prediction.experiment import experiment_scale
from moefabric.prediction.job_prediction import JobPrediction, Sending
from moefabric.prediction.scaling import (
    BUSY_SHARE,
    FRAME_SHARE,
    MEETING_FRAME_SHARE,
    MOST_BPS,
    START_SPREAD_SHARE,
    PlannedLoad,
    propose_scale,
    scale_remarks,
    shortest_wall_s,
)
from moefabric.simulator.fair_sharing import Stream
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES

SPEED = MachineSpeed(25e-6, 10e-6, 500.0, 0.6e-3, 45e-6)
datapaths = st.sampled_from(sorted(DATAPATH_COSTS))


def full(wired: Fabric, shortest_s: float) -> PlannedLoad:
    """Return the load of all-to-alls that fill all NICs."""
    servers = len(wired.servers)
    return PlannedLoad(
        wired, shortest_s, 2 * capacity_bps(wired), {servers * (servers - 1): shortest_s}
    )


def proposed(
    loads: list[PlannedLoad], datapath: str = "bpf", cores: int = 2, machine: MachineSpeed = SPEED
) -> Scale:
    return propose_scale(loads, datapath, machine, cores).scale


@given(datapaths, st.integers(1, 128), st.floats(1e-5, 10))
@example("ovs-netdev", 2, 0.5)  # a frame is as long as its Ethernet headers make it
def test_proposed_scale_keeps_all_bounds(datapath: str, cores: int, shortest_s: float) -> None:
    load = full(fabric(3, 1), shortest_s)
    scale = proposed([load], datapath, cores)
    scaled = replace(load.fabric, scale=scale)
    wall_s, rate_bps = shortest_s * scale.dilation, scale.rate_bps(100e9)
    assert SPEED.cores(scaled, load.link_bps, datapath) <= BUSY_SHARE * cores * (1 + 1e-6)
    assert SPEED.start_spread_s(12, cores) <= START_SPREAD_SHARE * wall_s * (1 + 1e-6)
    segments = fabric_frame_segments(scaled)
    frame_s = frame_bits(segments, scaled.mtu) / rate_bps
    assert segments == LEAST_SEGMENTS or frame_s <= FRAME_SHARE * wall_s * (1 + 1e-6)
    assert rate_bps <= MOST_BPS
    assert scale.bytes >= 1


def test_frames_are_short_where_transfers_meet_all_to_alls() -> None:
    load = full(fabric(0, 4), 0.0314)
    alone, meeting = proposed([load]), proposed([replace(load, shortest_transfer_s=0.05)])
    assert (meeting.bytes, meeting.dilation) == (alone.bytes, alone.dilation)
    assert alone.frame_s == pytest.approx(FRAME_SHARE * 0.0314 * alone.dilation)
    assert meeting.frame_s == pytest.approx(MEETING_FRAME_SHARE * 0.05 * meeting.dilation)
    assert meeting.frame_s < alone.frame_s


def test_dilation_is_the_least_that_the_start_of_agents_allows() -> None:
    load = full(fabric(0, 4), 0.0314)
    needed_s = SPEED.start_spread_s(12, 2) / START_SPREAD_SHARE
    dilation = proposed([load]).dilation
    assert 0.0314 * (dilation - 1) < needed_s <= 0.0314 * dilation


def test_collectives_that_are_long_or_empty_need_no_dilation() -> None:
    assert proposed([full(fabric(0, 4), 10.0)]).dilation == 1
    assert proposed([PlannedLoad(fabric(0, 4), 0.0, 0.0, {})]).dilation == 1


def test_idle_links_leave_the_cores_to_faster_ones() -> None:
    load = full(fabric(0, 8, regions=(8, 8)), 1.0)
    half = replace(load, link_bps=load.link_bps / 2)
    assert proposed([load]).bytes == pytest.approx(2 * proposed([half]).bytes, rel=0.2)


def test_bound_names_what_needs_the_dilation() -> None:
    small, large = full(fabric(0, 4), 0.05), full(fabric(0, 8, regions=(8,) * 16), 1.0)
    large = replace(large, starts={56: 1.0})
    assert propose_scale([small], "bpf", SPEED, 2).bound == "the start of agents"
    assert "frames of " in (propose_scale([large], "bpf", SPEED, 2).bound or "")


def test_load_is_that_of_the_busiest_instant_on_the_servers_of_the_fabric() -> None:
    wired = fabric(0, 2, regions=(2, 2))
    near, far = (("s0/e0", "leaf0"), ("leaf0", "s1/e0")), (("s9/e0", "leaf3"), ("leaf3", "s8/e0"))
    sendings = [
        Sending(0.0, 1.0, 1.0, (Stream(1e9, near),)),
        Sending(0.5, 1.0, 0.5, (Stream(1e9, near), Stream(1e9, near))),
        Sending(1.0, 2.0, 1.0, (Stream(2e9, near),)),
        Sending(0.0, 0.5, 0.5, (Stream(9e9, far),)),
    ]
    job = JobPrediction(
        2.0, 0.0, {("dispatch", "forward", 1, "r0"): 1.0}, transfers_s=[0.5], sendings=sendings
    )
    load = PlannedLoad.of(wired, [job])
    assert load.link_bps == pytest.approx(2 * 8e9 + 2 * 2 * 16e9)
    assert (load.shortest_s, load.starts) == (0.5, {1: 1.0, 2: 0.5})
    assert load.shortest_transfer_s == 0.5
    assert load.unskipped_s == 2.0
    idle = replace(job, compute_s=2.0, sendings=[*sendings[:2], Sending(1.5, 2.0, 0.5, ())])
    assert PlannedLoad.of(wired, [idle]).unskipped_s == 1.0, "the run skips the rest"


def test_scale_suits_the_iteration_that_needs_most() -> None:
    wired = fabric(0, 4)
    calm = PlannedLoad(wired, 1.0, 1e9, {12: 1.0}, 1.0)
    crowded = PlannedLoad(wired, 2.0, 2e9, {12: 2.0, 448: 2.0}, 3.0)
    assert PlannedLoad.greatest([calm, crowded]) == PlannedLoad(
        wired, 1.0, 2e9, {12: 1.0, 448: 2.0}, 2.0
    )


def test_later_iterations_count_for_the_scale_of_an_experiment() -> None:
    """The second demand of layer 1 fills all NICs, and needs seven times as many flows."""
    settings = ["training.iterations=1"]
    first, whole = (
        experiment_scale(
            load_experiment(EXAMPLES / "forwarding.yaml", some), EXAMPLES, "bpf"
        ).slowest
        for some in (settings, [])
    )
    assert whole.scale.dilation > 1.5 * first.scale.dilation


def test_shortest_wall_time_grows_with_the_servers() -> None:
    seconds = [shortest_wall_s(servers, cores=2) for servers in (2, 4, 8, 128)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 10 * seconds[0]


def test_proposed_scale_has_no_remarks() -> None:
    loads = [full(fabric(0, 4), 0.0314), full(fabric(3, 1), 0.0314)]
    assert scale_remarks(loads, proposed(loads), "bpf", SPEED, 2) == []


@pytest.mark.parametrize(
    ("scale", "remark"),
    [
        pytest.param(
            Scale(5, 5),
            "the planned traffic needs 6.2 of 2 cores: increase scale.bytes or scale.dilation",
            id="too-much-traffic",
        ),
        pytest.param(
            Scale(4000, 5),
            "a frame takes 19.4% of the shortest transfer, more than 10%: decrease scale.bytes or "
            "scale.frame, or increase scale.dilation",
            id="long-frames",
        ),
    ],
)
def test_scale_remarks_name_cause_and_remedy(scale: Scale, remark: str) -> None:
    loads = [full(fabric(0, 4), 0.020), full(fabric(3, 1), 0.020)]
    assert remark in scale_remarks(loads, scale, "bpf", SPEED, 2)


def test_transfers_too_short_for_the_start_of_agents_are_remarked() -> None:
    loads = [full(fabric(0, 4), 0.005)]
    remark = "the shortest transfer takes 10 ms, too little for the start of agents: increase "
    assert scale_remarks(loads, Scale(60, 2), "bpf", SPEED, 2) == [f"{remark}scale.dilation to 44"]


@pytest.mark.parametrize(
    ("profile", "dilation", "remedy"),
    [
        pytest.param("lightmatter-32", 100, "increase scale.dilation to 286", id="short"),
        pytest.param("lightmatter-32", 286, "", id="stretched"),
        pytest.param("telescent-1008", 1, "", id="long"),
    ],
)
def test_dark_times_that_software_cannot_keep_are_remarked(
    profile: str, dilation: float, remedy: str
) -> None:
    settings = [f"wiring.regions=[{{servers: 4, ocs: {{profile: {profile}, ports: 16}}}}]"]
    settings.append(f"scale={{bytes: 1000, dilation: {dilation}}}")
    found = experiment_scale(
        load_experiment(EXAMPLES / "prototype.yaml", settings), EXAMPLES, "bpf"
    )
    dark = {
        name: "".join(text.split(": ")[1] for text in texts if "circuits are dark" in text)
        for name, texts in found.remarks.items()
    }
    assert dark == {"eps": "", "mixnet": remedy, "mixnet-spill": remedy, "static": ""}


def test_frames_of_single_packets_need_slower_links() -> None:
    limited = replace(fabric(0, 4), queue=QueueLimit(100))
    single, many = (proposed([full(one, 0.0314)]) for one in (limited, fabric(0, 4)))
    assert single.bytes * single.dilation > 5 * many.bytes * many.dilation


def test_frame_has_the_bits_of_its_time_within_the_limits_of_the_kernel() -> None:
    assert [frame_segments(rate, 1500, 0.01) for rate in (3e6, 20e6, 1e9)] == [8, 16, 44]
    assert frame_segments(6e6, 1500, 0.09) == 44
    assert fabric_frame_segments(fabric(scale=Scale(100, 50))) == 16
    assert frame_bits(16, 1500) == 8 * 16 * 1514


def test_cost_of_a_frame_grows_from_that_of_a_packet() -> None:
    costs = [SPEED.link_frame_s(fabric(), segments, "bpf") for segments in (0, 22, 44)]
    crowd = 1 + 16 / SPEED.crowded_nics
    assert costs == pytest.approx([10e-6 * crowd, 17.5e-6 * crowd, 25e-6 * crowd])


def test_fabrics_of_another_wiring_have_a_scale_of_their_own() -> None:
    """Halves of a demand over light and EPS take longer than all of it, over the EPS of `eps`."""
    scales = experiment_scale(load_experiment(EXAMPLES / "spines.yaml"), EXAMPLES, "bpf")
    eps, spill = (scales.by_fabric[name].scale.dilation for name in ("eps", "mixnet-spill"))
    assert spill < 0.6 * eps
    assert scales.slowest == scales.by_fabric["eps"]


def test_fabrics_of_one_wiring_have_one_scale() -> None:
    spec = load_experiment(EXAMPLES / "prototype.yaml")
    scales = experiment_scale(spec, EXAMPLES, "bpf").by_fabric
    assert [[choice.name for choice in group] for group in spec.wiring_groups()] == [
        ["eps"],
        ["mixnet", "mixnet-spill", "static"],
    ]
    assert scales["mixnet"] == scales["mixnet-spill"] == scales["static"]


def test_real_servers_have_the_scale_of_the_slowest_emulated_fabric() -> None:
    fabrics = "fabrics=[{name: eps, optical: 0, electrical: 4, policy: eps}, {name: real, hosts: "
    fabrics += "true, optical: 0, electrical: 4, policy: eps}]"
    hosts = "hosts=[" + ", ".join(f"{{ssh: h{n}}}" for n in range(4)) + "]"
    spec = load_experiment(EXAMPLES / "prototype.yaml", [fabrics, hosts])
    scales = experiment_scale(spec, EXAMPLES, "bpf")
    assert scales.by_fabric["real"] == scales.by_fabric["eps"]
    assert "real" not in scales.remarks


@pytest.mark.parametrize("shortest_s", [0.001, 0.0314])
def test_dilation_is_rounded_up_by_less_than_one(shortest_s: float) -> None:
    """Two digits alone would slow a run by up to a tenth: 130 where 121 is enough."""
    load = replace(full(fabric(0, 4), shortest_s), link_bps=1e6, starts={56: shortest_s})
    scale = propose_scale([load], "bpf", SPEED, 2)
    needed = load.start_dilation(SPEED, 2)
    assert scale.bound == "the start of agents"
    assert needed <= scale.scale.dilation < needed + 1
