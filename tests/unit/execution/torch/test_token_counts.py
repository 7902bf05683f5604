"""Token counts that announce an exchange."""

import pytest

torch = pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")

from moefabric.execution.torch.process_group import TokenCounts, announces  # noqa: E402 - needs PyTorch

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("counts", "send_bytes", "expected"),
    [
        ([1, 2, 3, 0], [30, 30], True),
        ([1, 2, 3, 0], [30, 31], False),
        ([3, 0], [12, 0], True),
        ([3, 0], [0, 12], False),
        ([0, 0], [0, 0], True),
        ([0, 0], [5, 0], False),
        ([1, 1], [0, 0], False),
        ([-1, 3], [-4, 12], False),
        ([], [0, 0], False),
    ],
)
def test_sizes_in_proportion_to_counts(
    counts: list[int], send_bytes: list[int], *, expected: bool
) -> None:
    assert announces(counts, send_bytes) is expected


def test_counts_announce_the_next_exchange_only() -> None:
    group = TokenCounts(2)
    group.announce(torch.tensor([[1, 2], [3, 0]]), [])
    assert group.take([30, 30]) == (1, 2, 3, 0)
    assert group.take([30, 30]) is None


def test_uneven_and_indivisible_counts_announce_nothing() -> None:
    group = TokenCounts(2)
    group.announce(torch.tensor([1, 2, 3]), [1, 2])
    assert group.take([10, 50]) is None
    group.announce(torch.tensor([1, 2, 3]), [])
    assert group.take([10, 20]) is None
