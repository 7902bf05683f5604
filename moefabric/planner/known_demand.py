"""The demand that a policy knows when it chooses circuits."""

from enum import StrEnum

from moefabric.planner.policy import Policy


class KnownDemand(StrEnum):
    """Knowledge of a job's demand with which a policy chooses circuits."""

    NOTHING = "nothing"
    """None: the policy chooses no circuits."""
    OWN = "own demand"
    """The demand of the all-to-all for which it chooses, once the gate has run."""
    PREDICTED = "predicted demand"
    """For first all-to-alls a prediction from demands before; its own demand for others."""
    FUTURE_TOTAL = "future total"
    """The sum of all dispatches of the job before it begins, which nobody knows in a cluster."""


def known_demand(policy: Policy, dispatch_light: str) -> KnownDemand:
    """Return a policy's knowledge of demands.

    Args:
        dispatch_light: What first all-to-alls do until their circuits are lit.
    """
    if policy.name == "eps":
        return KnownDemand.NOTHING
    if not policy.reconfigures:
        return KnownDemand.FUTURE_TOTAL
    return KnownDemand.PREDICTED if dispatch_light == "predict" else KnownDemand.OWN
