"""Substitutes of lost GPUs and servers, and the placement and demand that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.demand import DemandMatrix, Placement
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.workload.iterations.iteration import Collective, Compute, moe_layer
from moefabric.workload.iterations.substitution import (
    Gpu,
    Losses,
    NoBackupError,
    Substitutions,
    find_substitutes,
    job_placement,
    tensor_exchange,
    with_tensor_exchange,
    working_groups,
)
from moefabric.workload.models.model import GroupedAttention, Model, Training

MODEL = Model(
    "tiny", layers=1, hidden=4, ffn=8, experts=4, top_k=1, attention=GroupedAttention(2, 1, 2)
)


def standing_by(backups: int = 1, regions: int = 1, gpus: int = 2) -> Fabric:
    """Regions of two servers, r0 of s0 and s1, and backup servers after them."""
    regions_of_job = [
        Region(f"r{i}", i, (f"s{2 * i}", f"s{2 * i + 1}"), Ocs(f"ocs{i}", 2))
        for i in range(regions)
    ]
    first = 2 * regions
    if backups:
        regions_of_job.append(
            Region(
                "backup", regions, tuple(f"s{first + i}" for i in range(backups)), None, backup=True
            )
        )
    return Fabric("lab", tuple(regions_of_job), gpus, 1, 1, 100e9, Eps(first + backups))


def lost(*names: str) -> Losses:
    """Servers and GPUs by name."""
    return Losses(
        frozenset(Gpu.parse(name) for name in names if "/" in name),
        frozenset(name for name in names if "/" not in name),
    )


@pytest.mark.parametrize(
    ("backups", "losses", "message"),
    [
        pytest.param(1, (), "no substitutions", id="nothing"),
        pytest.param(1, ("s1",), "s1 by s2", id="a-server"),
        pytest.param(1, ("s1/1",), "s1/1 by s2/0", id="a-gpu"),
        pytest.param(
            1, ("s0/1", "s1/0"), "s0/1 by s2/0, s1/0 by s2/1", id="two-gpus-share-a-backup-server"
        ),
        pytest.param(1, ("s1", "s1/0"), "s1 by s2", id="a-gpu-of-a-lost-server-goes-with-it"),
        pytest.param(2, ("s0", "s1/0"), "s0 by s2, s1/0 by s3/0", id="whole-servers-choose-first"),
        pytest.param(2, ("s2", "s1"), "s1 by s3", id="a-lost-backup-server-replaces-nothing"),
        pytest.param(1, ("s2/0", "s1/0"), "s1/0 by s2/1", id="nor-does-a-lost-backup-gpu"),
    ],
)
def test_substitutes_are_chosen_in_fabric_order(
    backups: int, losses: tuple[str, ...], message: str
) -> None:
    assert str(find_substitutes(standing_by(backups), lost(*losses))) == message


@pytest.mark.parametrize(
    ("backups", "regions", "losses", "message"),
    [
        pytest.param(
            0,
            1,
            ("s1",),
            "server s1 is lost and the fabric has no backup server: "
            "give it some (wiring.backup: {servers: 1})",
            id="no-backup-at-all",
        ),
        pytest.param(
            1,
            1,
            ("s0", "s1"),
            "server s1 is lost and no backup server is left for it (s2): "
            "give the fabric more of them",
            id="both-servers",
        ),
        pytest.param(
            1,
            1,
            ("s0", "s1/0"),
            "GPU s1/0 is lost and no backup server is left for it (s2): "
            "give the fabric more of them",
            id="a-backup-of-a-server-lends-no-gpu",
        ),
        pytest.param(
            1,
            2,
            ("s0/0", "s2/0"),
            "GPU s2/0 is lost and no backup server is left for it (s4): "
            "give the fabric more of them",
            id="one-backup-server-serves-one-region",
        ),
    ],
)
def test_no_backup_error_names_the_loss_and_the_remedy(
    backups: int, regions: int, losses: tuple[str, ...], message: str
) -> None:
    with pytest.raises(NoBackupError) as error:
        find_substitutes(standing_by(backups, regions), lost(*losses))
    assert str(error.value) == message


def test_working_substitutions_stay_and_returned_servers_end_theirs() -> None:
    fabric = standing_by(2)
    first = find_substitutes(fabric, lost("s1"))
    assert str(find_substitutes(fabric, lost("s0", "s1"), first)) == "s0 by s3, s1 by s2"
    assert str(find_substitutes(fabric, lost("s1", "s2"), first)) == "s1 by s3", (
        "its stand-in is lost too"
    )
    assert not find_substitutes(fabric, lost(), first).servers
    second = find_substitutes(fabric, lost("s1/0", "s2/0"))
    assert str(find_substitutes(fabric, lost("s1/0"), second)) == "s1/0 by s2/1", (
        "though s2/0 is back"
    )


def test_lost_server_prefers_a_backup_that_lends_no_gpu() -> None:
    fabric = standing_by(2)
    lending = find_substitutes(fabric, lost("s1/0"))
    assert str(find_substitutes(fabric, lost("s0", "s1/0"), lending)) == "s0 by s3, s1/0 by s2/0"


@given(st.sets(st.sampled_from(["s0", "s1", "s0/0", "s0/1", "s1/0", "s1/1", "s2/0", "s4"])))
def test_no_backup_works_twice_and_no_lost_one_works(names: set[str]) -> None:
    fabric, gone = standing_by(4), lost(*names)
    seats = find_substitutes(fabric, gone)
    instead = [*seats.servers.values(), *seats.gpus.values()]
    assert len(set(instead)) == len(instead)
    assert not set(seats.servers.values()) & gone.servers
    assert not {gpu.server for gpu in seats.gpus.values()} & {
        *gone.servers,
        *seats.servers.values(),
    }
    assert not set(seats.gpus.values()) & gone.gpus
    assert set(seats.servers) == gone.servers & set(fabric.primary_servers)


def test_backup_works_for_the_region_of_the_lost_server() -> None:
    fabric = standing_by(2, regions=2)
    assert working_groups(fabric, find_substitutes(fabric, lost("s1", "s2/0"))) == {
        "r0": ("s0", "s4"),
        "r1": ("s2", "s3", "s5"),
    }


GATING = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]])
"""Four ranks of one GPU, two a server, and an expert each."""
PLACEMENT = Placement(("s0", "s1"), 4, 4)


def test_rank_moves_to_the_backup_with_tokens_and_experts() -> None:
    fabric = standing_by()
    [placement] = job_placement(
        fabric, [PLACEMENT], 1, find_substitutes(fabric, lost("s1/1"))
    ).placements
    assert placement.servers == ("s0", "s1", "s2")
    assert placement.server_tokens(GATING).tolist() == [
        [1 + 2 + 5 + 6, 3 + 7, 4 + 8],
        [9 + 10, 11, 12],
        [13 + 14, 15, 16],
    ]


def test_backup_has_the_demand_of_the_lost_server() -> None:
    fabric = standing_by()
    [placement] = job_placement(
        fabric, [PLACEMENT], 1, find_substitutes(fabric, lost("s1"))
    ).placements
    assert placement.servers == ("s0", "s2")
    assert placement.server_tokens(GATING).tolist() == PLACEMENT.server_tokens(GATING).tolist()


def test_job_placement_without_losses_is_unchanged() -> None:
    assert job_placement(standing_by(), [PLACEMENT], 1, Substitutions()).placements == (PLACEMENT,)


def test_rank_with_one_lost_gpu_stays_and_exchanges_partial_sums() -> None:
    fabric, placement = standing_by(), Placement(("s0", "s1"), 2, 2)
    seated_now = job_placement(fabric, [placement], 2, find_substitutes(fabric, lost("s1/1")))
    [placement] = seated_now.placements
    assert placement.server_tokens([[1, 2], [3, 4]]).tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]
    owed = tensor_exchange(seated_now, 100.0)
    assert owed is not None
    assert list(owed.pairs()) == [("s1", "s2", 100.0), ("s2", "s1", 100.0)]
    assert (
        tensor_exchange(
            job_placement(fabric, [placement], 2, find_substitutes(fabric, lost("s1/0", "s1/1"))),
            100.0,
        )
        is None
    ), "a rank that lost all of them has moved"


def test_tensor_exchange_follows_every_computation() -> None:
    owed = DemandMatrix(("s0", "s1"), [[0, 1], [1, 0]])
    dispatch = Collective("dispatch", "forward", 3, owed)
    operations = list(
        with_tensor_exchange([Compute("expert", "backward", 3, (1.0, 1.0)), dispatch], owed)
    )
    assert operations[1] == Collective("tensor", "backward", 3, owed)
    assert operations[2:] == [dispatch]
    assert list(with_tensor_exchange([dispatch], None)) == [dispatch]


def test_server_without_ranks_computes_nothing() -> None:
    fabric, placement = standing_by(), Placement(("s0", "s1"), 4, 4)
    [placement] = job_placement(
        fabric, [placement], 2, find_substitutes(standing_by(gpus=4), lost("s0/1"))
    ).placements
    assert (
        moe_layer(MODEL, Training(4, 2, 10, 1, 1e3, 0.5), placement, GATING).busiest_tokens[2]
        == 0.0
    )
