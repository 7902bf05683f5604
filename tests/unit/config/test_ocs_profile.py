"""Profiles of optical circuit switches: shipped ones, files of users, and faults of a file."""

import json
from pathlib import Path

import pytest

from moefabric.config.loader import load_fabric
from moefabric.config.ocs import load_profile
from moefabric.config.plugins import OCS_PROFILES, built_in_names
from moefabric.core.errors import SpecError
from moefabric.core.ocs import DARK_NS, DeviceProfile, RandomTime, UserAccount
from moefabric.core.units import NS_PER_S
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric.plan import plan_fabric
from moefabric.emulator.ocs.cross_connects import Refusal
from moefabric.emulator.ocs.device import OcsDevice
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.restconf.dialect import RestconfOptions
from moefabric.emulator.ocs.tl1.dialect import Tl1Options
from moefabric.runtime.run_directory import ManagementNetwork
from tests.support.memory_crossbar import MemoryCrossbar
from tests.support.ocs_lab import write_profile
from tests.support.virtual_timers import VirtualTimers

FABRIC = """
fabric: lab
gpus_per_server: 2
nic_rate: 100Gb/s
nics: {{optical: 2, electrical: 1}}
regions: [{{servers: 3, ocs: {ocs}}}]
scale: {{bytes: 1000, dilation: 2}}
"""


def settled_ms(profile: DeviceProfile, *commands: list[tuple[int, int]]) -> float:
    """Return how long the light of the last command takes on a switch with this profile."""
    assert profile.ports is not None
    timers, commanded = VirtualTimers(), 0
    crossbar = MemoryCrossbar(Ports(profile.ports))
    device = OcsDevice(crossbar, timers, DeviceSpec(profile))
    for pairs in commands:
        timers.advance_all()
        commanded = timers.now_ns()
        device.add(pairs)
    return (device.light.settled_at_ns - commanded) / 1e6


def test_shipped_profiles_have_their_ports_and_settle_times() -> None:
    profiles = [load_profile(name) for name in built_in_names(OCS_PROFILES)]
    assert [(each.name, each.ports, each.settle.fixed_ns / 1e6) for each in profiles] == [
        ("calient-320", 320, 80),
        ("fast-10us", None, 0.01),
        ("lightmatter-32", 32, 0.007),
        ("palomar-136", 136, 10),
        ("plzt-16", 16, 0.00001),
        ("polatis-16x16", 16, 20),
        ("polatis-192x192", 192, 20),
        ("polatis-576", 576, 20),
        ("polatis-mixnet", 576, 36.11),
        ("rotornet-128", 128, 0.01),
        ("telescent-1008", 1008, 120_000),
    ]


def test_piezo_switch_settles_within_25_ms() -> None:
    times = [
        settled_ms(load_profile("polatis-16x16"), [(1, 17)], [(p, p + 16)]) for p in range(2, 17)
    ]
    assert all(15 <= time <= 25 for time in times)


def test_mems_switch_takes_longer_for_bulks_and_conflicts() -> None:
    calient = load_profile("calient-320")
    assert settled_ms(calient, [(1, 321)]) <= 100
    assert 100 < settled_ms(calient, [(1, 321), (2, 322)]) <= 200
    assert 400 < settled_ms(calient, [(1, 321), (2, 322)], [(1, 322), (2, 321)]) <= 500


def test_profile_file_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "vendor: Mine\nports: 8\nsettle: {fixed: 3ms, per_connection: 1ms}\nbusy: refuse\n"
    )
    path = tmp_path / "fabric.yaml"
    path.write_text(
        FABRIC.format(ocs=f"{{profile: {file}, startup: volatile, link_up: 5ms, link_down: true}}")
    )
    ocs = plan_fabric(load_fabric(path).build(), ManagementNetwork("198.18.0.0/24")).ocses[0].spec
    assert (ocs.ports, ocs.settle_ns, ocs.link_up.fixed_ns, ocs.link_down) == (
        8,
        6_000_000,
        10_000_000,
        True,
    )
    assert (ocs.profile.vendor, ocs.profile.startup, ocs.profile.busy) == (
        "Mine",
        "volatile",
        "refuse",
    )
    assert ocs.profile.settle.per_connection_ns == 2_000_000


def test_keys_beside_profile_override_it(tmp_path: Path) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC.format(ocs="{profile: polatis-16x16, settle: 1ms, ports: 12}"))
    ocs = plan_fabric(load_fabric(path).build(), ManagementNetwork("198.18.0.0/24")).ocses[0].spec
    assert (ocs.ports, ocs.settle_ns, ocs.profile.settle.jitter_ns) == (12, 2_000_000, 10_000_000)


@pytest.mark.parametrize("host", ["192.0.2.1", "ocs.example", '"2001:db8::1"', '"::1"'])
def test_address_of_a_switch_has_no_port(tmp_path: Path, host: str) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC.format(ocs=f"{{address: {host}}}"))
    assert load_fabric(path).build().regions[0].ocs is not None
    path.write_text(FABRIC.format(ocs="{address: 192.0.2.1:3082}"))
    with pytest.raises(SpecError, match=r"ocs.address: an address or name without port, whose key"):
        load_fabric(path)


def test_time_until_links_are_up_may_be_random(tmp_path: Path) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC.format(ocs="{link_up: {fixed: 5s, jitter: 1s, distribution: normal}}"))
    ocs = load_fabric(path).build().regions[0].ocs
    assert ocs is not None
    assert ocs.link_up == RandomTime(10 * NS_PER_S, 2 * NS_PER_S, "normal")
    path.write_text(FABRIC.format(ocs="{link_up: {fixed: 5s, colour: red}}"))
    with pytest.raises(SpecError, match=r"link_up.colour: is not a key here"):
        load_fabric(path)


def test_load_profile_reports_all_errors(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "vendor: a,b\nports: 1\nsettle: {fixed: -3ms, colour: red}\nloss: {monitors: some}\n"
    )
    with pytest.raises(SpecError) as error:
        load_profile(str(path))
    assert [place for place, _ in error.value.errors] == [
        *("vendor", "ports", "settle.fixed", "settle.colour", "loss.monitors")
    ]


DIALECTS = """
users: [{name: boss, password: secret}, {name: guest, group: view}]
tl1: {login: false, slow_s: 0, codes: {denied: SARB}}
restconf: {root: /restconf, revision: "2016-04-22", post_kept_s: 5}
"""


def test_profile_file_sets_users_and_dialects(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, DIALECTS))
    assert profile.users == (UserAccount("boss", "secret"), UserAccount("guest", "", "view"))
    tl1 = Tl1Options(login=False, slow_s=0, codes={Refusal.DENIED: "SARB"})
    restconf = RestconfOptions("/restconf", "2016-04-22", post_kept_s=5)
    assert Tl1Options(**profile.dialects["tl1"]) == tl1
    assert RestconfOptions(**profile.dialects["restconf"]) == restconf
    assert (tl1.code(Refusal.DENIED), tl1.code(Refusal.CONFLICT)) == ("SARB", "SNVS")


def test_users_and_dialects_have_defaults(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, "vendor: Acme\n"))
    assert (profile.users, profile.dialects) == (None, {})
    assert profile.settle.fixed_ns == DARK_NS == 25_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("tl1: {codes: {denied: no}}", "tl1.codes", id="code"),
        pytest.param("tl1: {codes: {weather: SROF}}", "tl1.codes", id="kind"),
        pytest.param("tl1: {outstanding: 0}", "tl1.outstanding", id="outstanding"),
        pytest.param("restconf: {root: api}", "restconf.root", id="root"),
        pytest.param("users: [{name: '@'}]", r"users\[0\]\.name", id="name"),
        pytest.param("users: [{name: a, group: king}]", r"users\[0\]\.group", id="group"),
    ],
)
def test_load_profile_names_place_of_error(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SpecError, match=place):
        load_profile(write_profile(tmp_path, text))


def test_device_spec_survives_json() -> None:
    spec = DeviceSpec(
        DeviceProfile(
            users=(UserAccount("a", "b", "user"),),
            dialects={"tl1": {"prompt": "<"}, "restconf": {"root": "/x"}},
        )
    )
    assert DeviceSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec
