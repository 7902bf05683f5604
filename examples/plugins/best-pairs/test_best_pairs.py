"""The policy keeps the laws of policies; `moefabric policy check best-pairs` prints them."""

from best_pairs import BestPairs

from moefabric import check_policy


def test_policy_keeps_all_laws() -> None:
    """Try the policy in many situations; a failure prints what is wrong."""
    report = check_policy(BestPairs(), timed_servers=[])
    assert report.keeps_all_laws, report
