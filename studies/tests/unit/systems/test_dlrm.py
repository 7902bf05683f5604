"""The study of a DLRM: bounds, exchanged blocks, training with errors, and the formula."""

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from moefabric_studies.codecs.block_codecs import BLOCK_CODECS, block_codec
from moefabric_studies.codecs.error_bounded import error_bounds
from moefabric_studies.systems.dlrm.clicks import (
    CARDINALITIES,
    Clicks,
    bound_factor,
    table_bounds,
    table_class,
)
from moefabric_studies.systems.dlrm.lesson import Bounding, Lesson
from moefabric_studies.systems.dlrm.speed import (
    CODECS,
    CodecSpeed,
    FabricSpeeds,
    TrainingSpeed,
    formula,
)
from moefabric_studies.systems.dlrm.study import Ratios, least_step, ratio_strips, speed_up_chart

TINY = Lesson(most=50, dimension=8, width=16, batch=64, ranks=4, iterations=12, held_out=2)


def test_factor_falls_from_its_first_value_to_one() -> None:
    factors = [bound_factor(iteration, 40, first=3.0) for iteration in range(45)]
    assert factors[0] == 3.0
    assert factors[40:] == [1.0] * 5
    assert factors == sorted(factors, reverse=True)


def test_factor_has_ten_levels() -> None:
    assert len({bound_factor(n, 100) for n in range(100)}) == 10


def test_each_table_has_the_bound_of_its_class() -> None:
    classes = [table_class(table) for table in range(len(CARDINALITIES))]
    assert [classes.count(name) for name in ("tight", "normal", "loose")] == [8, 12, 6]
    assert set(zip(classes, table_bounds(), strict=True)) == {
        ("tight", 0.01),
        ("normal", 0.03),
        ("loose", 0.05),
    }


def test_clicks_repeat_and_stay_within_their_tables() -> None:
    clicks = Clicks(50, seed=3)
    batch, again = clicks.batch(7, 500), Clicks(50, seed=3).batch(7, 500)
    assert np.array_equal(batch.categories, again.categories)
    assert np.array_equal(batch.clicks, again.clicks)
    for size, categories in zip(clicks.sizes, batch.categories, strict=True):
        assert 0 <= categories.min() <= categories.max() < size <= 50
    assert 0 < batch.clicks.mean() < 0.5


# --- exchanged blocks ----------------------------------------------------------------------------


class Ranks:
    """Exchanges of all ranks in one process; messages are handed over when all are encoded."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, codec: str, ranks: int, tables: int
    ) -> None:
        pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
        from moefabric_studies.systems.dlrm import exchange

        self.exchanges: list[Any] = []
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: ranks)
        for rank in range(ranks):
            monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
            codecs = [block_codec(codec, 0.01)] * tables
            self.exchanges.append(exchange.EmbeddingExchange(codecs))

    def all_to_all(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        sent: list[list[bytes]] = []

        def stop(messages: list[bytes]) -> list[bytes]:
            sent.append(messages)
            raise StopIteration

        results = []
        for one, value in zip(self.exchanges, inputs, strict=True):
            one.transfer = stop
            with pytest.raises(StopIteration):
                getattr(one, method)(value)
        for rank, (one, value) in enumerate(zip(self.exchanges, inputs, strict=True)):
            one.transfer = lambda _messages, rank=rank: [messages[rank] for messages in sent]
            results.append(getattr(one, method)(value))
        return results


@pytest.mark.nightly
def test_ranks_get_their_samples_of_all_tables_and_gradients_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, tables, samples = 3, 7, 4
    ranked = Ranks(monkeypatch, "fp32", ranks, tables)
    vectors = np.random.default_rng(0).normal(size=(tables, ranks * samples, 8)).astype("f4")
    own = [vectors[rank::ranks] for rank in range(ranks)]
    arrived = ranked.all_to_all("vectors", own)
    for rank, one in enumerate(arrived):
        assert np.array_equal(one, vectors[:, rank * samples : (rank + 1) * samples])
    for back, sent in zip(ranked.all_to_all("gradients", arrived), own, strict=True):
        assert np.array_equal(back, sent)


@pytest.mark.nightly
def test_own_slices_are_exact_and_others_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = Ranks(monkeypatch, "hybrid", 2, 2)
    vectors = np.random.default_rng(1).normal(size=(2, 64, 8)).astype("f4")
    first, _ = ranked.all_to_all("vectors", [vectors[:1], vectors[1:]])
    assert np.array_equal(first[0], vectors[0, :32])
    error = np.abs(first[1] - vectors[1, :32]).max()
    assert 0 < error <= error_bounds(vectors[1, :32], 0.01)


# --- training with errors ------------------------------------------------------------------------


@pytest.mark.nightly
def test_training_learns_with_and_without_errors() -> None:
    pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
    from moefabric_studies.systems.dlrm.accuracy import trained

    exact, again = (trained(TINY, Bounding(None), 0) for _ in range(2))
    coded = trained(TINY, Bounding({"tight": 0.01, "normal": 0.03, "loose": 0.05}), 0)
    rough = trained(TINY, Bounding({"tight": 0.4, "normal": 0.4, "loose": 0.4}), 0)
    assert exact.log_loss == again.log_loss
    assert exact.log_loss < np.log(2)
    distances = [abs(one.log_loss - exact.log_loss) for one in (coded, rough)]
    assert 0 < distances[0] < distances[1]


def test_bounds_of_a_training_follow_table_and_iteration() -> None:
    bounding = Bounding({"tight": 0.01, "normal": 0.03, "loose": 0.05}, early=0.5)
    early, late = bounding.of(0, 100), bounding.of(50, 100)
    assert early is not None
    assert late is not None
    assert np.allclose(early, 2 * table_bounds())
    assert np.allclose(late, table_bounds())
    assert Bounding(None).of(0, 100) is None


# --- ratios and speeds ---------------------------------------------------------------------------


def test_ratios_compare_bytes_of_the_same_vectors() -> None:
    vectors = np.random.default_rng(2).normal(size=(26, 64, 8)).astype("f4")
    ratios = Ratios(vectors, ranks=4)
    assert ratios.of_all("fp16") == pytest.approx(2, rel=0.05)
    assert ratios.best_over_single() >= 1
    factors = ratios.by_factor()
    assert factors == sorted(factors)
    assert least_step(factors) > 1
    assert least_step([1.0, 2.0, 3.0]) == 1.5


def test_formula_has_its_limits() -> None:
    assert formula(4.0, 0.0, 0.0, 1.0) == 4.0
    assert formula(float("inf"), 0.25, 0.25, 1.0) == 2.0
    assert formula(4.0, 1.0, 1.0, 1.0) < 0.5


def test_speed_up_of_training_follows_the_share() -> None:
    training = TrainingSpeed((1.4,), 0.6, 1.85)
    assert training.amdahl == pytest.approx(1.38, abs=0.005)


def test_pictures_show_every_codec_and_table() -> None:
    speeds = tuple(CodecSpeed(25e6, c, 8.0, 0.1, 0.1, 3.0, (2.9, 3.1)) for c in CODECS)
    fabric = FabricSpeeds(speeds, (0.9,))
    for text in (speed_up_chart([fabric]), ratio_strips(dict.fromkeys(BLOCK_CODECS, [5.0] * 26))):
        circles = ET.fromstring(text).iter("{http://www.w3.org/2000/svg}circle")
        assert len(list(circles)) >= 3 * len(CODECS)
