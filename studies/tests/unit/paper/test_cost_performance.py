"""Figures 12 and 13: the paper's networks by price and iteration time."""

from moefabric_studies.paper.cost_performance import NetworkPoint, front, predicted_points
from moefabric_studies.paper.results import PaperResults


def test_front_has_the_points_that_no_other_surpasses() -> None:
    cheap, dearer, slow, fast = (
        NetworkPoint(usd, time, "topoopt", 1e11)
        for usd, time in ((1.0, 3.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0))
    )
    assert front([fast, slow, dearer, cheap]) == [cheap, fast]


def test_points_are_in_the_unit_of_the_published_figures(predicted: PaperResults) -> None:
    rows = {(row.name, row.subject): row.value for row in predicted.rows("iteration")}
    (point,) = (
        point
        for point in predicted_points(predicted.evaluation, "qwen-moe")
        if (point.network, point.rate_bps) == ("mixnet", 400e9)
    )
    assert point.time == rows["mixnet", "qwen-moe at 400Gb/s"]
    assert min(p.time for p in predicted_points(predicted.evaluation, "deepseek-r1")) == 1.0
