"""The kinds of failures, with everything that depends on the kind alone.

A new kind of the hardware needs a member of `FailureKind` and its traits here, and its interfaces
in `moefabric.emulator.fabric.hardware_failures`. Experiments, `moefabric fault`, the Python API and
the failure log then know it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from moefabric.core.topology import Fabric


class FailureKind(StrEnum):
    """Kinds of failures.

    Users inject NIC failures as `nic`; controllers distinguish electrical and optical NICs.

    Example:
        >>> FailureKind("gpu").traits.loses_ranks
        True
    """

    NIC = "nic"
    """A NIC's link is down: neither the NIC nor its far end has carrier, and frames are dropped."""
    ELECTRICAL_NIC = "electrical-nic"
    OPTICAL_NIC = "optical-nic"
    OCS_PORT = "ocs-port"
    """No light passes a NIC's port of the optical switch, which refuses commands for it."""
    OCS = "ocs"
    """An optical switch has lost its power."""
    LIGHT = "light"
    """A circuit has lost its light though no component says that it has failed."""
    GPU = "gpu"
    """The rank of a GPU ends."""
    SERVER = "server"
    """A server is suspended and all of its NICs are down."""
    CONTROLLER = "controller"
    """The process of a controller is killed or suspended."""
    PROCESS = "process"
    """A process of the fabric itself, such as `switches`, has ended."""

    @property
    def traits(self) -> "FailureTraits":
        """The properties of this kind."""
        return _TRAITS[self]


@dataclass(frozen=True)
class FailureTraits:
    """The properties of a kind of failure.

    Attributes:
        has: Returns whether a fabric has a component of this name that can fail in this way.
        injection: The process that makes components fail: the fabric's, the server's agent or the
            controller itself; None for kinds that are only detected.
        detected_as: Further kinds as which a failure of this kind may be detected.
        plan_avoids: Whether the next plan after a recovery avoids the components.
        plan_returns: Whether the next plan after a clearing uses the components again.
        loses_ranks: Whether ranks end, so that something must replace them.
        restarts: Whether a component that is killed starts again by itself.
        summary: Short help of `moefabric fault KIND`; empty if the kind has a command of its own.
        description: Full help of that command.
        components: Name of that command's arguments.
        example: Arguments of it.
    """

    has: Callable[[Fabric, str], bool]
    injection: Literal["fabric", "agent", "controller"] | None = None
    detected_as: tuple[FailureKind, ...] = ()
    plan_avoids: bool = False
    plan_returns: bool = False
    loses_ranks: bool = False
    restarts: bool = False
    summary: str = ""
    description: str = ""
    components: str = ""
    example: str = ""


def _has_electrical_nic(fabric: Fabric, name: str) -> bool:
    return name in {str(nic) for server in fabric.servers for nic in fabric.electrical_nics(server)}


def _has_optical_nic(fabric: Fabric, name: str) -> bool:
    return name in {str(nic) for server in fabric.servers for nic in fabric.optical_nics(server)}


def _has_circuit(fabric: Fabric, name: str) -> bool:
    return all(_has_optical_nic(fabric, end) for end in name.split("~"))


def _has_gpu(fabric: Fabric, name: str) -> bool:
    server, _, index = name.partition("/")
    return server in fabric.server_index and index.isdecimal() and int(index) < fabric.gpus


_TRAITS: Final[Mapping[FailureKind, FailureTraits]] = {
    FailureKind.NIC: FailureTraits(
        lambda *place: _has_electrical_nic(*place) or _has_optical_nic(*place),
        injection="fabric",
        detected_as=(FailureKind.ELECTRICAL_NIC, FailureKind.OPTICAL_NIC, FailureKind.SERVER),
        plan_avoids=True,
        plan_returns=True,
        summary="Take the links of NICs down.",
        description="Take the links of NICs such as s0/e0 and s0/o1 down.\n\n"
        "Neither end of the link has carrier, and frames are dropped.",
        components="nics",
        example="s0/e0 s0/o1",
    ),
    FailureKind.ELECTRICAL_NIC: FailureTraits(_has_electrical_nic),
    FailureKind.OPTICAL_NIC: FailureTraits(_has_optical_nic),
    FailureKind.OCS_PORT: FailureTraits(
        _has_optical_nic,
        injection="fabric",
        detected_as=(FailureKind.OPTICAL_NIC,),
        plan_avoids=True,
        plan_returns=True,
        summary="Let the OCS ports of NICs fail.",
        description="Let the OCS ports of optical NICs such as s0/o1 fail.\n\n"
        "No light passes them, and the OCS rejects commands for them.",
        components="nics",
        example="s0/o1",
    ),
    FailureKind.OCS: FailureTraits(
        lambda fabric, name: any(r.ocs and r.ocs.name == name for r in fabric.regions),
        injection="fabric",
        plan_avoids=True,
        plan_returns=True,
    ),
    FailureKind.LIGHT: FailureTraits(_has_circuit, plan_avoids=True, plan_returns=True),
    FailureKind.GPU: FailureTraits(_has_gpu, injection="agent", loses_ranks=True),
    FailureKind.SERVER: FailureTraits(
        lambda fabric, name: name in fabric.server_index,
        injection="fabric",
        plan_returns=True,
        loses_ranks=True,
        summary="Suspend servers.",
        description="Suspend servers such as s3: stop their agents and take all their NICs down.",
        components="servers",
        example="s3",
    ),
    FailureKind.CONTROLLER: FailureTraits(
        lambda fabric, name: name in {"eps", *(region.name for region in fabric.regions)},
        injection="controller",
        restarts=True,
    ),
    FailureKind.PROCESS: FailureTraits(lambda _fabric, _name: True),
}

INJECTABLE: Final = tuple(kind for kind in FailureKind if kind.traits.injection is not None)
"""Kinds that users inject."""
