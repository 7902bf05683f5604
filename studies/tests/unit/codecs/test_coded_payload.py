"""Tokens in an error-bounded code: their bytes, their times, and wrong arguments."""

import pytest
from moefabric_studies.codecs.block_codecs import BLOCK_CODECS
from moefabric_studies.codecs.coded_payload import ErrorBoundedTokens

from moefabric.config.plugins import PAYLOAD_TRANSFORMS, load_plugin
from moefabric.core.errors import SpecError
from moefabric.workload.models.payload import PayloadTransform


@pytest.mark.parametrize("codec", BLOCK_CODECS)
def test_error_bounded_tokens_are_shorter_and_cost_time(codec: str) -> None:
    transform = load_plugin(
        PAYLOAD_TRANSFORMS, f"error-bounded(eb=0.03, codec={codec}, scale=100)", PayloadTransform
    )
    assert transform.token_bytes(256, 512) <= 512
    assert 0 <= transform.encode_s_per_byte < 1e-7
    assert 0 <= transform.decode_s_per_byte < 1e-7
    assert transform.name == f"error-bounded(eb=0.03, codec={codec}, scale=100)"


def test_larger_errors_give_fewer_bytes() -> None:
    sizes = [ErrorBoundedTokens(eb, "ans").token_bytes(1024, 2048) for eb in (0.1, 0.03, 0.01)]
    assert sizes == sorted(sizes)
    assert 1024 * 0.125 < sizes[0] < sizes[2] < 1024


@pytest.mark.parametrize("arguments", ["eb=0", "codec=best", "scale=0"])
def test_error_bounded_tokens_refuse_wrong_arguments(arguments: str) -> None:
    with pytest.raises(SpecError, match=arguments.partition("=")[0]):
        load_plugin(PAYLOAD_TRANSFORMS, f"error-bounded({arguments})", PayloadTransform)
