"""The baseline: which fabric of a run the others are measured against."""

from moefabric.baseline import baseline, blocking


def _entry(name: str, policy: str = "eps", oversubscription: float | None = None) -> dict[str, object]:
    eps = None if oversubscription is None else {"oversubscription": oversubscription}
    return {"fabric": name, "policy": policy, "wiring": {"eps": eps}}


def test_the_baseline_is_the_fabric_without_light_that_blocks_least_wherever_it_stands() -> None:
    listed = [
        _entry("oversub", oversubscription=3.0),
        _entry("mixnet", "mixnet", 1.0),
        _entry("tree", oversubscription=1.0),
    ]
    chosen = baseline(listed)
    assert chosen is not None
    assert chosen["fabric"] == "tree"


def test_of_several_alike_it_is_the_first() -> None:
    chosen = baseline([_entry("one", oversubscription=1.0), _entry("other", oversubscription=1.0)])
    assert chosen is not None
    assert chosen["fabric"] == "one"


def test_a_run_with_light_in_all_its_fabrics_has_none() -> None:
    assert baseline([_entry("mixnet", "mixnet", 1.0)]) is None


def test_what_says_nothing_of_its_switches_is_taken_not_to_block() -> None:
    assert blocking({}) == blocking({"eps": None}) == blocking({"eps": {"oversubscription": "much"}}) == 1.0
