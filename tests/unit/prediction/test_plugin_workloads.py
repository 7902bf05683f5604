"""Placements, payloads and transports of other modules, named in an experiment."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from moefabric.config.loader import load_experiment
from moefabric.config.ocs import load_profile
from moefabric.config.plugins import transport_named
from moefabric.core.errors import SpecError, UnsupportedError
from moefabric.core.ocs import DeviceProfile
from moefabric.core.transport import PACED, RENO, TcpTransport
from moefabric.prediction.experiment import predict_fabrics
from moefabric.testbed import testbed
from moefabric.testbed.testbed import ready_transport
from tests.support.paths import EXAMPLES

MODULE = """
from dataclasses import dataclass
from moefabric.core.ocs import DeviceProfile
from moefabric.core.transport import TcpTransport

class Reverse:
    name = "reverse"
    def experts_in_order(self, tokens, seed):
        return range(tokens.shape[1])[::-1]

class Twice(Reverse):
    def experts_in_order(self, tokens, seed):
        return [0] * tokens.shape[1]

class Share:
    encode_s_per_byte, decode_s_per_byte = 0.0, 0.0
    def __init__(self, part=0.5):
        self.name, self.part = f"share of {part}", part
    def token_bytes(self, hidden, plain_bytes):
        return plain_bytes * self.part
    def token_flops(self, hidden):
        return 0.0

class Tenth:
    name, encode_s_per_byte, decode_s_per_byte = "tenth", 0.0, 1e-9
    def token_bytes(self, hidden, plain_bytes):
        return plain_bytes / 10
    def token_flops(self, hidden):
        return 0.0

GENTLE = TcpTransport("gentle", "reno", send_buffer_bytes=65536)
SLOW_MIRRORS = DeviceProfile(name="slow-mirrors", ports=8)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def predicted(*settings: str) -> dict[str, Any]:
    path = EXAMPLES / "prototype.yaml"
    spec = load_experiment(path, settings)
    fabric: dict[str, Any] = predict_fabrics(spec, path.parent).to_json()["fabrics"][0]
    return fabric


def test_payload_changes_all_to_alls_and_computation() -> None:
    plain = predicted()
    tenth = predicted(
        "training.dispatch_payload=lab_parts:Tenth", "training.combine_payload=lab_parts:Tenth"
    )
    assert tenth["all_to_all_s"] == pytest.approx(plain["all_to_all_s"] / 10, rel=0.02)
    assert tenth["compute_s"] > plain["compute_s"]
    fp8 = predicted("training.dispatch_payload=fp8", "training.combine_payload=fp8")
    assert fp8["all_to_all_s"] == pytest.approx(plain["all_to_all_s"] * 4224 / 8192, rel=0.02)


def test_placement_changes_which_servers_owe_each_other() -> None:
    times = {
        name: predicted(f"gating.placement={name}")["all_to_all_s"]
        for name in ("contiguous", "random", "lab_parts:Reverse")
    }
    assert len(set(times.values())) == 3
    with pytest.raises(SpecError, match=r"gating.placement: reverse doesn't return each of 8"):
        predicted("gating.placement=lab_parts:Twice")


def test_a_fabric_has_a_place_and_a_transform_of_its_own() -> None:
    plain = predicted()
    quarter = predicted("fabrics[0].transform=lab_parts:Share(part=0.25)")
    assert quarter["all_to_all_s"] == pytest.approx(plain["all_to_all_s"] / 4, rel=0.02)
    assert (plain["transform"], quarter["transform"]) == (None, "lab_parts:Share(part=0.25)")
    placed = predicted("fabrics[0].place=random", "gating.placement=balanced")
    assert placed["all_to_all_s"] == predicted("gating.placement=random")["all_to_all_s"]
    with pytest.raises(SpecError, match=r"place: reverse doesn't return each of 8"):
        predicted("fabrics[0].place=lab_parts:Twice")


def test_fabrics_differ_in_their_transport() -> None:
    spec = load_experiment(EXAMPLES / "prototype.yaml", ["fabrics[1].transport=reno"])
    assert [spec.transport_of(choice).name for choice in spec.fabrics[:2]] == ["paced", "reno"]


def test_transport_of_another_module_is_taken() -> None:
    assert transport_named("paced") is PACED
    gentle = transport_named("lab_parts:GENTLE")
    assert gentle == TcpTransport("gentle", "reno", send_buffer_bytes=65536)
    with pytest.raises(
        SpecError, match=r"transport: 'quic' is not one of bbr, dctcp, paced, reno, tcp"
    ):
        load_experiment(EXAMPLES / "prototype.yaml", ["transport=quic"])


def test_congestion_control_that_the_kernel_lacks_is_named_with_the_remedy() -> None:
    with ready_transport(RENO) as name:
        assert name == "reno"
    missing = r"transport odd: .*'nonesuch', but .*reno.*modprobe"
    with (
        pytest.raises(UnsupportedError, match=missing),
        ready_transport(TcpTransport("odd", "nonesuch")),
    ):
        pass


def test_paced_connections_have_reno_where_the_kernel_takes_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> AbstractContextManager[str]:
        raise UnsupportedError("it needs Linux 6.4")

    monkeypatch.setattr(testbed, "paced", refused)
    with ready_transport(PACED) as name:
        assert name == "reno"


def test_profile_of_another_module_is_taken() -> None:
    assert load_profile("lab_parts:SLOW_MIRRORS") == DeviceProfile(name="slow-mirrors", ports=8)
    with pytest.raises(SpecError, match="'lab_parts:GENTLE' is a TcpTransport; a DeviceProfile is"):
        load_profile("lab_parts:GENTLE")


def test_order_of_all_to_alls_changes_their_time_but_not_the_computation() -> None:
    switch = ("fabrics[0].optical=0", "fabrics[0].electrical=1", "training.tp=4")
    times = {
        order: predicted(*switch, f"fabrics[0].collective={order}")
        for order in ("concurrent", "aurora", "sjf", "aurora(barrier_s=0.001)")
    }
    concurrent = times["concurrent"]
    assert {name: time["collective"] for name, time in times.items()} == {n: n for n in times}
    assert times["aurora"]["all_to_all_s"] == pytest.approx(concurrent["all_to_all_s"], rel=0.01)
    assert times["sjf"]["all_to_all_s"] > 1.2 * concurrent["all_to_all_s"]
    pauses_s = times["aurora(barrier_s=0.001)"]["all_to_all_s"] - times["aurora"]["all_to_all_s"]
    assert pauses_s * 1000 == pytest.approx(round(pauses_s * 1000))
    assert pauses_s > 0.004
    assert {time["compute_s"] for time in times.values()} == {concurrent["compute_s"]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dispatch_light=divert", r"fabrics\[1\].collective: divert moves bytes between phases"),
        ("split_demand=last", r"fabrics\[1\].collective: phases are split by their own demand"),
        ("collective=sorted", r"fabrics\[1\].collective: .*'sorted' is not one of concurrent, "),
    ],
)
def test_order_that_the_fabric_cannot_follow_is_a_fault(setting: str, message: str) -> None:
    settings = ("fabrics[1].policy=mixnet-spill", "fabrics[1].collective=aurora")
    with pytest.raises(SpecError, match=message):
        load_experiment(EXAMPLES / "prototype.yaml", (*settings, f"fabrics[1].{setting}"))
