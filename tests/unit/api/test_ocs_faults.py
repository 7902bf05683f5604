"""Faults of an OCS as requests to its process."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from moefabric.api.failure_injection import FailureInjection
from moefabric.api.ocs_failures import ocs_request, region_of_ocs
from moefabric.core.errors import SpecError
from moefabric.core.ocs import Ocs, OcsControl
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric import hardware_injection
from moefabric.emulator.ocs.cross_connects import RefusedError
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_failures import OcsFailure
from moefabric.results.parts import Json
from tests.support.controller_lab import fabric
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.virtual_timers import VirtualTimers

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
        pytest.param(["port", "4", "9", "4"], {}, fault("port", 4, 9), id="a-port-twice"),
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
        pytest.param(
            ["melt"], "'melt' is not one of port, .*partial-apply, reboot, down$", id="no"
        ),
        pytest.param(["rejekt"], "reboot, down; did you mean reject", id="mistyped"),
        pytest.param(["delay", "soon"], "delay: 'soon'", id="no-duration"),
        pytest.param(["delay", "9999min"], "'9999min' is not within 0 to 1440min", id="long"),
        pytest.param(["delay", "-1s"], "'-1s' is not within 0 to 1440min", id="negative"),
    ],
)
def test_ocs_request_refuses_arguments_that_do_not_fit(words: list[str], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        command(*words)


@pytest.mark.parametrize(
    "words", [["port", "s9/o0"], ["loss", "1-x"], ["loss", "s0/o0"], ["partial-apply", "half"]]
)
def test_ocs_request_names_wrong_argument(words: list[str]) -> None:
    with pytest.raises(SpecError, match=r"s9/o0|'x'|'s0/o0' is no path such as 1-17|'half'"):
        command(*words)


@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        (["port", "1"], {"db": 3.0}, "db: only loss takes it, not port"),
        (["reject"], {"after": True}, "after: only reset takes it, not reject"),
        (["down"], {"times": 2}, "times: down affects no commands"),
    ],
)
def test_ocs_request_refuses_options_of_another_kind(
    words: list[str], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SpecError, match=f"^{expected}$"):
        command(*words, **options)


class InMemory(FailureInjection):
    """A fabric whose OCS is a device in virtual time."""

    fabric = FABRIC

    def __init__(self) -> None:
        super().__init__("lab")
        self.device = OcsDevice(MemoryCrossbar(Ports(6)), VirtualTimers())

    def _ask_ocs(self, name: str, request: Mapping[str, Any]) -> Json:
        match request["do"]:
            case "inject":
                self.device.inject(OcsFailure.from_json(request["fault"]))
            case "clear":
                self.device.clear_failures(request["number"])
        return {"faults": [asdict(failure) for failure in self.device.failures]}

    def _ocs_faults(self, name: str, request: Mapping[str, Any]) -> Json:
        return self._ask_ocs(name, request)  # it always has power


def test_with_accepts_a_fault_that_is_used_up() -> None:
    lab = InMemory()
    with lab.ocs_fault("reject", times=1):
        with pytest.raises(RefusedError):
            lab.device.clear()
        later = lab.ocs_fault("reject")
    assert [fault["number"] for fault in later["faults"]] == [2]
    assert lab.ocs_fault("list")["faults"] == later["faults"], "the later fault stays"


def test_region_of_ocs_refuses_unknown_name() -> None:
    with pytest.raises(SpecError, match=r"^ocs9 is not one of ocs0$"):
        region_of_ocs(FABRIC, "ocs9")


def test_component_that_is_named_twice_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    injected: list[tuple[str, ...]] = []
    inject = lambda _run_dir, _kind, what: injected.append(what)  # noqa: E731
    monkeypatch.setattr(hardware_injection, "inject", inject)
    lab = InMemory()
    lab.fault("nic", "s0/o0", "s1/o0", "s0/o0")
    lab.fault("ocs-port", "s0/o0", "s0/o0")
    assert injected == [("s0/o0", "s1/o0"), ("s0/o0",)]


class RealOcs(FailureInjection):
    """A fabric whose OCS is somewhere else."""

    control = OcsControl(address="192.0.2.10")
    fabric = replace(FABRIC, regions=(replace(REGION, ocs=Ocs("ocs0", 6, control=control)),))


@pytest.mark.parametrize(
    "use",
    [
        lambda lab: lab.ocs(),
        lambda lab: lab.ocs_clear(),
        lambda lab: lab.ocs_fault("port", "s0/o0"),
        lambda lab: lab.ocs_fault("list"),
        lambda lab: lab.fault("ocs", "ocs0"),
        lambda lab: lab.fault("ocs-port", "s0/o0"),
    ],
    ids=["ocs", "clear", "port", "list", "down", "nic-port"],
)
def test_ocs_that_is_not_emulated_is_not_asked(use: Callable[[RealOcs], object]) -> None:
    with pytest.raises(SpecError, match=r"ocs0 is not emulated, but at 192\.0\.2\.10: ask the"):
        use(RealOcs("lab"))


def test_region_of_ocs_refuses_fabric_without_ocs() -> None:
    with pytest.raises(SpecError, match=r"^ocs0: the fabric has no OCS$"):
        region_of_ocs(fabric(optical=0), "ocs0")
