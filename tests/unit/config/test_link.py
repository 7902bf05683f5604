"""`eps.link` of a fabric file: quantities as users write them, and times that stretch."""

from typing import Any

import pytest

from moefabric.config.fabric import FabricSpec
from moefabric.config.validation import validate
from moefabric.core.errors import SpecError
from moefabric.core.link import LinkBehaviour, Scheduling
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.runtime.run_directory import ManagementNetwork

MANAGEMENT = ManagementNetwork("198.18.7.0/24")


def document(**link: Any) -> dict[str, Any]:
    return {
        "fabric": "f",
        "gpus_per_server": 1,
        "nic_rate": "100Gb/s",
        "nics": {"optical": 1, "electrical": 1},
        "regions": [{"servers": 2}],
        "scale": {"bytes": 500, "dilation": 2},
        "eps": {"servers_per_leaf": 1, "link": link},
    }


def behaviours(**link: Any) -> dict[str, LinkBehaviour]:
    fabric = validate(FabricSpec, document(**link)).build()
    return {
        one.name: one.behaviour for one in plan_fabric(fabric, MANAGEMENT).links if one.behaviour
    }


def test_links_of_nics_get_the_emulated_rate_and_stretched_times() -> None:
    link = {"delay": "1ms", "jitter": "10us", "queue": "64 kB", "ecn": "20kB", "loss": 0.01}
    assert behaviours(**link, scheduling="fair") == dict.fromkeys(
        ("s0/e0", "s1/e0"),
        LinkBehaviour(
            100e6, 2_000_000, 20_000, 64_000, Scheduling.FAIR, ecn_bytes=20_000, loss=0.01
        ),
    )


def test_uplinks_get_their_own_rate() -> None:
    links = behaviours(place="uplinks", delay="3ms")
    assert {link.partition("~")[0] for link in links} == {"leaf0", "leaf1"}
    assert all(behaviour.delay_ns == 6_000_000 for behaviour in links.values())


def test_kernel_shapes_what_has_no_behaviour() -> None:
    fabric = validate(FabricSpec, document(delay="1ms")).build()
    shaped = {link.name for link, _ in plan_fabric(fabric, MANAGEMENT).shaped}
    assert {"s0/o0", "s1/o0"} <= shaped
    assert not {"s0/e0", "s1/e0"} & shaped


@pytest.mark.parametrize(
    "link", [{"loss": 1}, {"queue": "0 B"}, {"place": "spines"}, {"delays": "1ms"}]
)
def test_impossible_links_are_refused(link: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"eps\.link"):
        validate(FabricSpec, document(**link))
