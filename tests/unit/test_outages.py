"""What a person takes from the hardware: which interfaces are down for it, and who else suffers."""

from collections.abc import Mapping
from typing import Any

import pytest

from emulator.outages import Kind, Outage, Outages, interfaces
from emulator.plan import plan
from moefabric.errors import FabricError
from moefabric.management import Management
from moefabric.topology import Scale
from tests.fabrics import fabric

PLAN = plan(fabric(2, 1, regions=(2, 2), scale=Scale(1000.0)), Management("198.18.0.0/24"))


@pytest.mark.parametrize(
    ("kind", "what", "down"),
    [
        (Kind.NIC, ["s0/e0"], {"s0-e0"}),
        (Kind.NIC, ["s0/o1", "s3/e0"], {"s0-o1", "s3-e0"}),
        (Kind.SERVER, ["s2"], {"s2-o0", "s2-o1", "s2-e0"}),
        (Kind.OCS, ["ocs1"], {"s2-o0", "s2-o1", "s3-o0", "s3-o1", "ocs1-mgmt"}),
    ],
    ids=["nic", "nics", "server", "ocs"],
)
def test_what_is_out_is_down_in_the_fabrics_namespace(kind: Kind, what: list[str], down: set[str]) -> None:
    assert interfaces(PLAN, Outage(kind, tuple(what))) == down


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"inject": {"kind": "nic", "what": ["s9/e0"]}},
            "fault nic: s9/e0 is not one of s0/o0, s0/o1, s0/e0, ",
        ),
        ({"inject": {"kind": "server", "what": ["ocs0"]}}, "fault server: ocs0 is not one of s0, s1, s2, s3"),
        ({"inject": {"kind": "ocs", "what": ["s0"]}}, "fault ocs: s0 is not one of ocs0, ocs1"),
        ({"inject": {"kind": "nic", "what": []}}, "fault nic: of what?"),
        ({"inject": {"kind": "fibre", "what": ["s0/o0"]}}, "fault: 'fibre' is not one of nic, server, ocs"),
        ({"inject": {"kind": "nic", "what": "s0/e0"}}, "fault: 's0/e0' are no names"),
        ({"inject": ["s0/e0"]}, "fault: ['s0/e0'] has no kind"),
        ({"clear": {"kind": "nic", "what": ["s0/e0"]}}, "s0/e0: no such fault"),
    ],
    ids=["no-nic", "no-server", "no-ocs", "nothing", "no-kind", "no-list", "no-keys", "not-out"],
)
def test_what_isnt_there_cant_be_taken(asked: Mapping[str, Any], said: str) -> None:
    outages = Outages(PLAN, lambda _server, _number: None)
    with pytest.raises(FabricError) as refused:
        outages.asked(asked)
    assert str(refused.value).startswith(said)
    assert outages.asked({})["faults"] == []
