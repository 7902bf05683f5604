"""Faults of an OCS as requests to its process."""

from typing import Any

import pytest

from moefabric.api.ocs_failures import ocs_request, region_of_ocs
from moefabric.core.errors import SpecError
from tests.support.controller_lab import fabric

FABRIC = fabric(servers=3, optical=2)
REGION = FABRIC.regions[0]  # six ports: outputs are 7..12


def command(*words: str, **options: Any) -> dict[str, Any]:
    return ocs_request(words[0] if words else None, words[1:], FABRIC, REGION, **options)


def fault(kind: str, *ports: int, value: float = 0.0, times: int | None = None) -> dict[str, Any]:
    return {
        "do": "inject",
        "fault": {"kind": kind, "ports": list(ports), "value": value, "times": times},
    }


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        pytest.param([], {}, {"do": "list"}, id="nothing"),
        pytest.param(["list"], {}, {"do": "list"}, id="list"),
        pytest.param(["reboot"], {}, {"do": "reboot"}, id="reboot"),
        pytest.param(["port", "4", "9"], {}, fault("port", 4, 9), id="ports"),
        pytest.param(["port", "s1/o0"], {}, fault("port", 3, 9), id="both-fibres-of-a-nic"),
        pytest.param(["stuck", "s1/o0", "1"], {}, fault("stuck", 3, 1), id="the-input-of-a-nic"),
        pytest.param(
            ["loss", "1-8"], {"db": 3.0}, fault("loss", 1, 8, value=3.0), id="a-path-by-ports"
        ),
        pytest.param(
            ["loss", "s0/o0~s2/o1"], {}, fault("loss", 1, 12, value=30.0), id="a-path-by-nics"
        ),
        pytest.param(["reject"], {"times": 2}, fault("reject", times=2), id="twice"),
        pytest.param(["delay", "250ms"], {}, fault("delay", value=0.25), id="late"),
        pytest.param(["drop-completion"], {}, fault("drop-completion"), id="drop-completion"),
        pytest.param(["reset"], {}, fault("reset"), id="before"),
        pytest.param(["reset"], {"after": True}, fault("reset", value=1.0), id="after"),
        pytest.param(
            ["partial-apply", "2"], {}, fault("partial-apply", value=2), id="part-of-a-batch"
        ),
    ],
)
def test_ocs_request_translates_words(
    words: list[str], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert command(*words, **options) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["port"], "port PORT", id="which-port"),
        pytest.param(["delay"], "delay TIME", id="how-late"),
        pytest.param(["loss", "1", "8"], "loss PATH", id="two-words"),
        pytest.param(["list", "me"], "takes no arguments", id="too-much"),
        pytest.param(["melt"], "'melt' is not one of port, stuck", id="unknown"),
        pytest.param(["delay", "soon"], "delay: 'soon'", id="no-duration"),
    ],
)
def test_ocs_request_refuses_arguments_that_do_not_fit(words: list[str], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        command(*words)


@pytest.mark.parametrize("words", [["port", "s9/o0"], ["loss", "1-x"], ["partial-apply", "half"]])
def test_ocs_request_names_wrong_argument(words: list[str]) -> None:
    with pytest.raises(SpecError, match=r"s9/o0|'x'|'half'"):
        command(*words)


def test_region_of_ocs_refuses_unknown_name() -> None:
    with pytest.raises(SpecError, match=r"^ocs9 is not one of ocs0$"):
        region_of_ocs(FABRIC, "ocs9")


def test_region_of_ocs_refuses_fabric_without_ocs() -> None:
    with pytest.raises(SpecError, match=r"^ocs0: the fabric has no OCS$"):
        region_of_ocs(fabric(optical=0), "ocs0")
