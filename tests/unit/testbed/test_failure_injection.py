"""Failures of components that a fabric lacks: refused with those that it has."""

from pathlib import Path

import pytest

from moefabric.core.errors import FabricError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import Failure
from moefabric.runtime.run_directory import (
    ControlPlane,
    FabricWiring,
    ManagementNetwork,
    RunDirectory,
)
from moefabric.testbed import failure_injection
from moefabric.testbed.failure_injection import inject
from tests.support.fabrics import fabric


@pytest.mark.parametrize(
    ("kind", "name", "known"),
    [
        (FailureKind.GPU, "s0/9", "s0/0 to s0/7, s1/0 to s1/7, s2/0 to s2/7, s3/0 to s3/7"),
        (FailureKind.CONTROLLER, "r9", "r0, eps"),
    ],
)
def test_unknown_component_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, kind: FailureKind, name: str, known: str
) -> None:
    wiring = FabricWiring(fabric(), ManagementNetwork("198.18.7.0/24"))
    monkeypatch.setattr(failure_injection, "read_wiring", lambda _run_dir: wiring)
    with pytest.raises(SpecError, match=f"^{name}: lab has no such {kind}; it has {known}$"):
        inject(RunDirectory(Path("lab")), Failure(kind, (name,)))


def test_controller_of_others_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    network = ManagementNetwork("198.18.7.0/24")
    wiring = FabricWiring(fabric(), network, controller=ControlPlane.EXTERNAL)
    monkeypatch.setattr(failure_injection, "read_wiring", lambda _run_dir: wiring)
    with pytest.raises(FabricError, match=r"r0: its process isn't the fabric's .*external"):
        inject(RunDirectory(Path("lab")), Failure(FailureKind.CONTROLLER, ("r0",)))
