"""Incast over a programmable link: flows together get the link's rate."""

from moefabric_studies.systems.link.incast import Incast, measure_incast

from tests.support.attempts import measurements


def test_flows_together_get_the_rate_of_the_link_in_any_order() -> None:
    incast = Incast(50e6, 500_000, 100_000, rounds=8)
    tries = measurements(
        lambda: measure_incast(incast, [3], 400_000)[0], lambda one: one.share > 0.9
    )
    assert max(one.share for one in tries) > 0.9
    assert all(one.share <= 1.0 for one in tries), "no round beats its bound"
    assert all(one.drops == 0 for one in tries)
