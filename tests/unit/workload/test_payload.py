"""Payload transforms change bytes on the wire and the time of layers, and nothing else."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from moefabric.config.model import preset
from moefabric.core.demand import Placement
from moefabric.workload.iterations.iteration import (
    Collective,
    Compute,
    Layer,
    iteration_operations,
    moe_layer,
)
from moefabric.workload.models.model import Direction, Training
from moefabric.workload.models.payload import BigMac, Fp8, Payloads, Plain

MIXTRAL, DEEPSEEK = replace(preset("mixtral-8x7b"), layers=2), preset("deepseek-r1")
TRAINING = Training(8, 4, 4096, 8, 312e12, 0.4)
PLACEMENT = Placement(("s0", "s1", "s2", "s3"), 8, 8)
GATING = np.ones((8, 8))


def layer(payloads: Payloads) -> Layer:
    return moe_layer(MIXTRAL, replace(TRAINING, payloads=payloads), PLACEMENT, GATING)


def test_plain_payload_is_the_models_own() -> None:
    training = replace(TRAINING, payloads=Payloads(Plain(), Plain()))
    assert training == TRAINING
    for model in (MIXTRAL, DEEPSEEK):
        assert training.dispatch_token_bytes(model) == model.dispatch_token_bytes
        assert training.combine_ratio(model) == model.combine_ratio


def test_fp8_has_a_byte_a_number_and_a_scale_for_128() -> None:
    assert Fp8().token_bytes(4096, 8192) == 4096 + 32 * 4
    assert Fp8().token_bytes(130, 260) == 130 + 2 * 4
    assert Fp8().token_bytes(7168, DEEPSEEK.dispatch_token_bytes) == DEEPSEEK.dispatch_token_bytes
    assert Fp8().token_bytes(4096, 2048) == 2048, "a smaller type of the model stays"


@pytest.mark.parametrize(
    ("payloads", "going", "returning"),
    [
        (Payloads(), 8192, 8192),
        (Payloads(dispatch=Fp8()), 4224, 8192),
        (Payloads(combine=Fp8()), 8192, 4224),
        (Payloads(Fp8(), Fp8()), 4224, 4224),
    ],
)
def test_all_to_alls_carry_the_bytes_of_their_payloads(
    payloads: Payloads, going: float, returning: float
) -> None:
    plain = layer(Payloads()).demand.total_bytes
    operations = iteration_operations(
        MIXTRAL, replace(TRAINING, payloads=payloads), [layer(payloads)] * 2
    )
    sent = {
        (one.kind, one.direction): one.demand.total_bytes
        for one in operations
        if isinstance(one, Collective)
    }
    towards_experts = sent["dispatch", "forward"], sent["combine", "backward"]
    back = sent["combine", "forward"], sent["dispatch", "backward"]
    assert towards_experts == pytest.approx([plain * going / 8192] * 2)
    assert back == pytest.approx([plain * returning / 8192] * 2)


@dataclass(frozen=True)
class Slow(Plain):
    encode_s_per_byte: float = 3e-12
    decode_s_per_byte: float = 5e-12


def test_coding_adds_its_time_at_both_ends_of_each_all_to_all() -> None:
    """Each rank sends 32,768 tokens twice and computes as many; four GPUs share the coding."""
    copied = 2 * TRAINING.rank_tokens * 8192 / TRAINING.tp
    slow = replace(TRAINING, payloads=Payloads(dispatch=Slow()))
    both = replace(TRAINING, payloads=Payloads(Slow(), Slow()))
    tokens = 2.0 * TRAINING.rank_tokens
    for direction in ("forward", "backward"):
        attention_s = TRAINING.attention_s(MIXTRAL, direction)
        expert_s = TRAINING.expert_s(MIXTRAL, tokens, direction)
        added = [
            (
                training.attention_s(MIXTRAL, direction) - attention_s,
                training.expert_s(MIXTRAL, tokens, direction) - expert_s,
            )
            for training in (slow, both)
        ]
        assert added[0] == pytest.approx((3e-12 * copied, 5e-12 * copied))
        assert added[1] == pytest.approx((8e-12 * copied, 8e-12 * copied))


def test_coding_is_part_of_the_operations() -> None:
    payloads = Payloads(Slow(), Slow())
    plain_s, coded_s = (
        sum(
            one.slowest_s
            for one in iteration_operations(
                MIXTRAL, replace(TRAINING, payloads=form), [layer(form)] * 2
            )
            if isinstance(one, Compute)
        )
        for form in (Payloads(), payloads)
    )
    assert coded_s > plain_s


def test_bigmac_sends_a_part_of_the_width() -> None:
    assert BigMac(0.25).token_bytes(4096, 8192) == 2048
    assert BigMac(0.25, "fp8").token_bytes(4096, 8192) == 1024 + 8 * 4
    assert BigMac(1.0).token_bytes(4096, 8192) == 8192
    assert BigMac(0.25, "fp8").encode_s_per_byte == Fp8().encode_s_per_byte / 4


@pytest.mark.parametrize("arguments", [(0.0,), (1.5,), (0.25, "fp4")])
def test_bigmac_refuses_widths_and_forms_that_are_none(arguments: tuple[float, str]) -> None:
    with pytest.raises(ValueError, match=r"^(r|inner) is "):
        BigMac(*arguments)


@pytest.mark.parametrize(
    ("direction", "recomputation", "passes"),
    [("forward", False, 1), ("backward", False, 2), ("backward", True, 3)],
)
def test_projections_compute_each_token_once_on_its_own_rank(
    direction: Direction, recomputation: bool, passes: int
) -> None:
    plain = replace(TRAINING, recomputation=recomputation)
    narrow = replace(plain, payloads=Payloads(BigMac(0.25), BigMac(0.25)))
    added_s = narrow.attention_s(MIXTRAL, direction) - plain.attention_s(MIXTRAL, direction)
    flops = TRAINING.rank_tokens * 4 * 0.25 * 4096**2
    assert added_s * TRAINING.rank_flops == pytest.approx(passes * flops)
    assert narrow.expert_s(MIXTRAL, 1e4, direction) == plain.expert_s(MIXTRAL, 1e4, direction)


def test_projections_cost_what_the_paper_says() -> None:
    """BigMac, table 4: 3490.67 and 3649.00 TFLOP for 2^19 tokens, 24 layers of width 2048."""
    forward = 2**19 * 24 * Payloads(BigMac(0.25), BigMac(0.25)).source_flops(2048)
    assert 3 * forward / 1e12 == pytest.approx(3649.00 - 3490.67, abs=0.01)
