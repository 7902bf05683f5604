"""Who works in whose place when GPUs and servers are lost, and what the job's demand is then."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.demand import DemandMatrix, Placement
from moefabric.health import Gpu, Lost, NoBackupError, Seats, groups, planned_for, seated
from moefabric.iteration import Collective, Compute, layer
from moefabric.model import Model, Training
from moefabric.seating import exchange, exchanging, seating
from moefabric.topology import Eps, Fabric, Ocs, Region

MODEL = Model("tiny", layers=1, hidden=4, ffn=8, experts=4, top_k=1, kv_hidden=2)


def standing_by(backups: int = 1, regions: int = 1, gpus: int = 2) -> Fabric:
    """Regions of two servers, r0 of s0 and s1, and backup servers after them."""
    made = [Region(f"r{i}", i, (f"s{2 * i}", f"s{2 * i + 1}"), Ocs(f"ocs{i}", 2)) for i in range(regions)]
    first = 2 * regions
    if backups:
        made.append(
            Region("backup", regions, tuple(f"s{first + i}" for i in range(backups)), None, backup=True)
        )
    return Fabric("lab", tuple(made), gpus, 1, 1, 100e9, Eps(first + backups))


def lost(*names: str) -> Lost:
    """Servers and GPUs by name."""
    return Lost(
        frozenset(Gpu.parse(name) for name in names if "/" in name),
        frozenset(name for name in names if "/" not in name),
    )


@pytest.mark.parametrize(
    ("backups", "what", "said"),
    [
        pytest.param(1, (), "everyone in his own place", id="nothing"),
        pytest.param(1, ("s1",), "s1 by s2", id="a-server"),
        pytest.param(1, ("s1/1",), "s1/1 by s2/0", id="a-gpu"),
        pytest.param(1, ("s0/1", "s1/0"), "s0/1 by s2/0, s1/0 by s2/1", id="two-gpus-share-a-backup-server"),
        pytest.param(1, ("s1", "s1/0"), "s1 by s2", id="a-gpu-of-a-lost-server-goes-with-it"),
        pytest.param(2, ("s0", "s1/0"), "s0 by s2, s1/0 by s3/0", id="whole-servers-choose-first"),
        pytest.param(2, ("s2", "s1"), "s1 by s3", id="a-lost-backup-server-takes-no-place"),
        pytest.param(1, ("s2/0", "s1/0"), "s1/0 by s2/1", id="nor-does-a-lost-backup-gpu"),
    ],
)
def test_the_lost_are_replaced_in_the_order_of_the_fabric(
    backups: int, what: tuple[str, ...], said: str
) -> None:
    assert str(seated(standing_by(backups), lost(*what))) == said


@pytest.mark.parametrize(
    ("backups", "regions", "what", "said"),
    [
        pytest.param(
            0, 1, ("s1",),
            "server s1 is lost and the fabric has no backup server: give it some (wiring.backup: {servers: 1})",
            id="no-backup-at-all",
        ),
        pytest.param(
            1, 1, ("s0", "s1"),
            "server s1 is lost and no backup server is left for it (s2): give the fabric more of them",
            id="both-servers",
        ),
        pytest.param(
            1, 1, ("s0", "s1/0"),
            "GPU s1/0 is lost and no backup server is left for it (s2): give the fabric more of them",
            id="whoever-stands-in-for-a-server-lends-no-gpu",
        ),
        pytest.param(
            1, 2, ("s0/0", "s2/0"),
            "GPU s2/0 is lost and no backup server is left for it (s4): give the fabric more of them",
            id="one-backup-server-serves-one-region",
        ),
    ],
)  # fmt: skip
def test_who_finds_no_place_is_told_with_the_remedy(
    backups: int, regions: int, what: tuple[str, ...], said: str
) -> None:
    with pytest.raises(NoBackupError) as told:
        seated(standing_by(backups, regions), lost(*what))
    assert str(told.value) == said


def test_whoever_is_well_seated_stays_and_the_returned_give_their_places_back() -> None:
    fabric = standing_by(2)
    first = seated(fabric, lost("s1"))
    assert str(seated(fabric, lost("s0", "s1"), first)) == "s0 by s3, s1 by s2"
    assert str(seated(fabric, lost("s1", "s2"), first)) == "s1 by s3", "its stand-in is lost too"
    assert not seated(fabric, lost(), first).servers
    second = seated(fabric, lost("s1/0", "s2/0"))
    assert str(seated(fabric, lost("s1/0"), second)) == "s1/0 by s2/1", "though s2/0 is back"


def test_a_lost_server_gets_a_backup_server_that_lends_no_gpu_where_there_is_one() -> None:
    fabric = standing_by(2)
    lending = seated(fabric, lost("s1/0"))
    assert str(seated(fabric, lost("s0", "s1/0"), lending)) == "s0 by s3, s1/0 by s2/0"


@given(st.sets(st.sampled_from(["s0", "s1", "s0/0", "s0/1", "s1/0", "s1/1", "s2/0", "s4"])))
def test_nobody_works_in_two_places_and_nobody_lost_works(names: set[str]) -> None:
    fabric, gone = standing_by(3), lost(*names)
    seats = seated(fabric, gone)
    instead = [*seats.servers.values(), *seats.gpus.values()]
    assert len(set(instead)) == len(instead)
    assert not set(seats.servers.values()) & gone.servers
    assert not {gpu.server for gpu in seats.gpus.values()} & {*gone.servers, *seats.servers.values()}
    assert not set(seats.gpus.values()) & gone.gpus
    assert set(seats.servers) == gone.servers & set(fabric.working)


def test_a_stand_in_works_for_the_region_of_the_lost() -> None:
    fabric = standing_by(2, regions=2)
    assert groups(fabric, seated(fabric, lost("s1", "s2/0"))) == {
        "r0": ("s0", "s4"),
        "r1": ("s2", "s3", "s5"),
    }


GATING = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]])
"""Four ranks of one GPU, two a server, and an expert each."""
PLACEMENT = Placement(("s0", "s1"), 4, 4)


def test_a_ranks_tokens_and_expert_go_with_it_to_the_backup() -> None:
    fabric = standing_by()
    [placement] = seating(fabric, [PLACEMENT], 1, seated(fabric, lost("s1/1"))).placements
    assert placement.servers == ("s0", "s1", "s2")
    assert placement.tokens(GATING).tolist() == [
        [1 + 2 + 5 + 6, 3 + 7, 4 + 8],
        [9 + 10, 11, 12],
        [13 + 14, 15, 16],
    ]


def test_a_replaced_servers_demand_is_the_lost_ones() -> None:
    fabric = standing_by()
    [placement] = seating(fabric, [PLACEMENT], 1, seated(fabric, lost("s1"))).placements
    assert placement.servers == ("s0", "s2")
    assert placement.tokens(GATING).tolist() == PLACEMENT.tokens(GATING).tolist()


def test_a_job_that_lost_nothing_is_as_it_was() -> None:
    assert seating(standing_by(), [PLACEMENT], 1, Seats()).placements == (PLACEMENT,)


def test_a_rank_that_lost_one_of_its_gpus_stays_and_sends_partial_sums_to_the_backup() -> None:
    fabric, placement = standing_by(), Placement(("s0", "s1"), 2, 2)
    seated_now = seating(fabric, [placement], 2, seated(fabric, lost("s1/1")))
    [made] = seated_now.placements
    assert made.tokens([[1, 2], [3, 4]]).tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]
    owed = exchange(seated_now, 100.0)
    assert owed is not None
    assert list(owed.pairs()) == [("s1", "s2", 100.0), ("s2", "s1", 100.0)]
    assert exchange(seating(fabric, [placement], 2, seated(fabric, lost("s1/0", "s1/1"))), 100.0) is None, (
        "a rank that lost all of them has moved"
    )


def test_partial_sums_follow_every_computation_and_nothing_else() -> None:
    owed = DemandMatrix(("s0", "s1"), [[0, 1], [1, 0]])
    dispatch = Collective("dispatch", "forward", 3, owed)
    told = list(exchanging([Compute("expert", "backward", 3, (1.0, 1.0)), dispatch], owed))
    assert told[1] == Collective("tensor", "backward", 3, owed)
    assert told[2:] == [dispatch]
    assert list(exchanging([dispatch], None)) == [dispatch]


def test_what_a_server_without_ranks_computes_is_nothing() -> None:
    fabric, placement = standing_by(), Placement(("s0", "s1"), 4, 4)
    [made] = seating(fabric, [placement], 2, seated(standing_by(gpus=4), lost("s0/1"))).placements
    assert layer(MODEL, Training(4, 2, 10, 1, 1e3, 0.5), made, GATING).busiest_tokens[2] == 0.0


def test_a_regions_controller_plans_for_those_that_are_there() -> None:
    demand = DemandMatrix(("s0", "s2"), [[1, 5], [7, 2]])
    assert planned_for(("s0", "s1"), demand).array.tolist() == [[1, 0], [0, 0]]
    whole = DemandMatrix(("s0", "s1", "s2"), [[0, 1, 9], [2, 0, 9], [9, 9, 9]])
    assert planned_for(("s0", "s1"), whole) == DemandMatrix(("s0", "s1"), [[0, 1], [2, 0]])
