"""A dialect and a driver of another package, installed with pip, work as the built-in ones do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moefabric.config import plugins
from moefabric.config.ocs import load_profile
from moefabric.config.plugins import ocs_dialects
from moefabric.controller.southbound.ocs.remote_ocs import RemoteOcs, device_address, make_driver
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError, SpecError
from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl, SettleTime
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.ui.cli.schema import schema_text
from tests.support.controller_lab import fabric
from tests.support.ocs_device import ocs_device
from tests.support.ocs_lab import OcsBench, write_profile
from tests.support.packages import DIALECT_PACKAGE, install_package

_NO_KEY = (
    "is not a key here; keys are: absent, boot, busy, errors, firmware, loss, model, ports, reset, "
    "settle, shut, startup, users, vendor"
)

CIRCUITS = CircuitSet.of(["s0/o0~s3/o2", "s1/o0~s2/o1"])
CACHES = plugins._built_in, plugins._registered, plugins._found, plugins._loaded


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(DIALECT_PACKAGE, tmp_path_factory.mktemp("stranger"))


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(site)
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


def test_dialect_is_registered_with_its_port() -> None:
    ports = {name: dialect.port for name, dialect in ocs_dialects().items()}
    assert ports == {"restconf": 8008, "scpi": 5025, "tl1": 3082, "line": 4001}


def test_driver_commands_the_emulated_switch_by_the_dialect() -> None:
    wired = fabric(servers=4, optical=3, settle_ns=20_000_000)
    region, control = wired.regions[0], OcsControl("line")
    assert device_address(control, "198.18.0.2") == ("198.18.0.2", 4001)
    profile = DeviceProfile(settle=SettleTime(20_000_000))
    with ocs_device("line", 12, profile) as served:
        driver = make_driver(Ocs("ocs0", 12, control=control), served.address)
        with RemoteOcs(wired, region, driver) as ocs:
            ocs.reconfigure(CircuitSet().transition_to(CIRCUITS))
            assert ocs.settled_circuits(10) == CIRCUITS
            assert len(served.cross_connects()) == 4
            busy = CircuitSet().transition_to(CircuitSet.of(["s0/o0~s1/o0"]))
            with pytest.raises(ControlError, match="busy"):
                ocs.reconfigure(busy)


def test_section_of_a_profile_sets_the_options_of_the_dialect(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, 'ports: 12\nline: {separator: ":"}\n'))
    assert profile.dialects == {"line": {"separator": ":"}}
    bench = OcsBench(12, DeviceSpec(profile), ["line", "scpi"])
    assert (
        bench.client("line")
        .send(b"add 1:13,2:14\nlist\nadd 3-15\n")
        .startswith(b"ok\n1:13,2:14\nerror ")
    )
    assert bench.client("scpi").send(b":oxc:swit:conn:stat?\n") == b"(@1,2),(@13,14)\n"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        pytest.param("line: {separator: x}", "line.separator", "- or : is needed, 'x' given"),
        pytest.param(
            "line: {colour: red}", "line.colour", "is not a key here; keys are: separator"
        ),
        pytest.param("lime: {separator: x}", "lime", _NO_KEY),
    ],
)
def test_faults_in_options_are_named(tmp_path: Path, text: str, place: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load_profile(write_profile(tmp_path, text))
    assert error.value.errors == ((place, message),)


def test_schema_of_profiles_has_the_options() -> None:
    assert "Character between the input and the output of a pair." in schema_text("ocs-profile")


def test_object_that_is_no_dialect_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("line_ocs.dialect.LINE", 4001)
    with pytest.raises(SpecError, match="'line' is a int; an OcsDialect is needed"):
        ocs_dialects()
