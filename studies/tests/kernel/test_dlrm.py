"""A DLRM whose ranks run on emulated servers: errors of what arrives, and bytes at NICs."""

from collections.abc import Iterator

import pytest
from moefabric_studies.systems.dlrm.lesson import Lesson
from moefabric_studies.systems.dlrm.speed import DlrmRanks, dlrm_ranks

from tests.support.namespaces import own_machine

pytestmark = pytest.mark.nightly
pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
LESSON = Lesson(most=100, dimension=32, width=8, batch=1024, ranks=2, iterations=0, held_out=0)
TABLES = 26


@pytest.fixture(scope="module")
def ranks() -> Iterator[DlrmRanks]:
    with own_machine(), dlrm_ranks("dlrm-test", 500e6, LESSON) as running:
        yield running


def test_nics_carry_the_vectors_and_fewer_bytes_with_a_codec(ranks: DlrmRanks) -> None:
    sent = {codec: ranks.ask("exchange", codec, 2)["sent_bytes"] for codec in ("fp32", "hybrid")}
    plain = 2 * TABLES * LESSON.batch * LESSON.dimension * 4 // LESSON.ranks
    assert plain < sent["fp32"] < 1.1 * plain
    assert sent["hybrid"] < plain / 4


def test_errors_stay_within_their_bounds_forward_and_backward(ranks: DlrmRanks) -> None:
    for worst in ranks.ask("check", "hybrid", 2)["worst"]:
        assert 0.5 < worst <= 1
    assert max(ranks.ask("check", "fp16", 1)["worst"]) < 1


def test_training_learns_with_coded_vectors_and_gradients(ranks: DlrmRanks) -> None:
    losses = ranks.ask("train", "hybrid", 12)["losses"]
    assert sum(losses[-4:]) < sum(losses[:4])
