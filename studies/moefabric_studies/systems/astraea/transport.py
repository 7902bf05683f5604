"""Astraea as a transport of fabrics: `transport: astraea`."""

from functools import partial
from pathlib import Path

from moefabric.api.links import LoadedTransport
from moefabric_studies.systems.astraea.decisions import OWN_WEIGHTS, Actor
from moefabric_studies.systems.astraea.policy import astraea


def astraea_transport(weights: str = str(OWN_WEIGHTS)) -> LoadedTransport:
    """Return Astraea, whose windows a policy decides that learned fairness.

    Args:
        weights: A file of the actor's weights (`Actor.load`); default: weights of our own.

    Raises:
        SpecError: The weights can't be used.
    """
    path = Path(weights)
    Actor.load(path)
    return LoadedTransport(
        name="astraea", congestion_control="astraea", load=partial(astraea, path)
    )
