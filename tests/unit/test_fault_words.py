"""`moefabric fault ocs`: what its words ask of a switch's process."""

from typing import Any

import click
import pytest

from moefabric.commands.fault_ocs import _asked, region_of
from moefabric.errors import SpecError
from moefabric.management import Management, Wiring
from tests.controller_lab import fabric

WIRING = Wiring(fabric(servers=3, optical=2), Management("198.18.0.0/24"))
REGION = WIRING.fabric.regions[0]  # six ports: outputs are 7..12


def asked(*words: str, **options: Any) -> dict[str, Any]:
    chosen = {"times": None, "db": 30.0, "after": False, "clear": None, **options}
    kind = words[0] if words else None
    return _asked(kind, words[1:], wiring=WIRING, region=REGION, **chosen)


def fault(ill: str, *ports: int, value: float = 0.0, times: int | None = None) -> dict[str, Any]:
    return {"do": "inject", "fault": {"ill": ill, "ports": list(ports), "value": value, "times": times}}


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        pytest.param([], {}, {"do": "list"}, id="nothing"),
        pytest.param(["list"], {}, {"do": "list"}, id="list"),
        pytest.param(["reboot"], {}, {"do": "reboot"}, id="reboot"),
        pytest.param([], {"clear": "all"}, {"do": "heal", "number": None}, id="clear-all"),
        pytest.param([], {"clear": "3"}, {"do": "heal", "number": 3}, id="clear-one"),
        pytest.param(["port", "4", "9"], {}, fault("port", 4, 9), id="ports"),
        pytest.param(["port", "s1/o0"], {}, fault("port", 3, 9), id="both-fibres-of-a-nic"),
        pytest.param(["stuck", "s1/o0", "1"], {}, fault("stuck", 3, 1), id="the-input-of-a-nic"),
        pytest.param(["loss", "1-8"], {"db": 3.0}, fault("loss", 1, 8, value=3.0), id="a-path-by-ports"),
        pytest.param(["loss", "s0/o0~s2/o1"], {}, fault("loss", 1, 12, value=30.0), id="a-path-by-nics"),
        pytest.param(["deny"], {"times": 2}, fault("deny", times=2), id="twice"),
        pytest.param(["delay", "250ms"], {}, fault("delay", value=0.25), id="late"),
        pytest.param(["never"], {}, fault("never"), id="never"),
        pytest.param(["reset"], {}, fault("reset"), id="before"),
        pytest.param(["reset"], {"after": True}, fault("reset", value=1.0), id="after"),
        pytest.param(["partial", "2"], {}, fault("partial", value=2), id="part-of-a-batch"),
    ],
)
def test_words_become_what_is_asked(words: list[str], options: dict[str, Any], said: dict[str, Any]) -> None:
    assert asked(*words, **options) == said


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        pytest.param(["port"], {}, "port PORT", id="which-port"),
        pytest.param(["delay"], {}, "delay TIME", id="how-late"),
        pytest.param(["loss", "1", "8"], {}, "loss PATH", id="two-words"),
        pytest.param(["list", "me"], {}, "takes nothing more", id="too-much"),
        pytest.param(["deny"], {"clear": "all"}, "either a kind of fault or --clear", id="both"),
    ],
)
def test_half_a_wish_is_wrong_usage(words: list[str], options: dict[str, Any], said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        asked(*words, **options)


@pytest.mark.parametrize("words", [["port", "s9/o0"], ["loss", "1-x"], ["partial", "half"]])
def test_a_word_that_is_none_is_named(words: list[str]) -> None:
    with pytest.raises(SpecError, match=r"s9/o0|'x'|'half'"):
        asked(*words)


def test_a_switch_of_another_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"^ocs9 is not one of ocs0$"):
        region_of(WIRING, "ocs9")


def test_where_there_is_no_optical_switch_that_is_said() -> None:
    with pytest.raises(SpecError, match=r"^ocs0: the fabric has no optical switch$"):
        region_of(Wiring(fabric(optical=0), WIRING.management), "ocs0")
