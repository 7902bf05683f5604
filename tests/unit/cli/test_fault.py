"""`moefabric fault`: requests to an OCS process, and wrong usage."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from moefabric.cli import fault as fault_commands
from moefabric.cli.fault import ocs_command
from moefabric.cli.options import region_of_ocs
from moefabric.config.run_directory import FabricWiring, ManagementNetwork
from moefabric.core.errors import SpecError
from tests.support.controller_lab import fabric

WIRING = FabricWiring(fabric(servers=3, optical=2), ManagementNetwork("198.18.0.0/24"))
REGION = WIRING.fabric.regions[0]  # six ports: outputs are 7..12


def command(*words: str, **options: Any) -> dict[str, Any]:
    chosen = {"times": None, "db": 30.0, "after": False, "clear": None, **options}
    kind = words[0] if words else None
    return ocs_command(kind, words[1:], wiring=WIRING, region=REGION, **chosen)


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
        pytest.param([], {"clear": "all"}, {"do": "clear", "number": None}, id="clear-all"),
        pytest.param([], {"clear": "3"}, {"do": "clear", "number": 3}, id="clear-one"),
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
def test_ocs_command_translates_words(
    words: list[str], options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert command(*words, **options) == expected


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        pytest.param(["port"], {}, "port PORT", id="which-port"),
        pytest.param(["delay"], {}, "delay TIME", id="how-late"),
        pytest.param(["loss", "1", "8"], {}, "loss PATH", id="two-words"),
        pytest.param(["list", "me"], {}, "takes no arguments", id="too-much"),
        pytest.param(["reject"], {"clear": "all"}, "either a kind of fault or --clear", id="both"),
    ],
)
def test_ocs_command_refuses_wrong_usage(
    words: list[str], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(click.UsageError, match=expected):
        command(*words, **options)


@pytest.mark.parametrize("words", [["port", "s9/o0"], ["loss", "1-x"], ["partial-apply", "half"]])
def test_ocs_command_names_wrong_argument(words: list[str]) -> None:
    with pytest.raises(SpecError, match=r"s9/o0|'x'|'half'"):
        command(*words)


@pytest.mark.parametrize(
    ("old", "new"), [("deny", "reject"), ("never", "drop-completion"), ("partial", "partial-apply")]
)
def test_fault_ocs_names_present_word_for_former_one(old: str, new: str) -> None:
    result = CliRunner().invoke(fault_commands.fault, ["ocs", old])
    assert result.exit_code == 2
    assert f"'{old}' is now called '{new}'" in result.output


def test_region_of_ocs_refuses_unknown_name() -> None:
    with pytest.raises(SpecError, match=r"^ocs9 is not one of ocs0$"):
        region_of_ocs(WIRING, "ocs9")


def test_region_of_ocs_refuses_fabric_without_ocs() -> None:
    with pytest.raises(SpecError, match=r"^ocs0: the fabric has no OCS$"):
        region_of_ocs(FabricWiring(fabric(optical=0), WIRING.management), "ocs0")
