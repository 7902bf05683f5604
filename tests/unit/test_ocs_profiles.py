"""Profiles of optical switches: those that ship, the user's own, and what is wrong with one."""

from pathlib import Path

import pytest

from emulator.light import MemoryCrossbar, Ports
from emulator.loop import VirtualTimers
from emulator.ocs.build import Build
from emulator.ocs.store import Store
from emulator.plan import plan
from moefabric.errors import SpecError
from moefabric.management import Management
from moefabric.ocs_profile import Profile
from moefabric.spec import load
from moefabric.spec.ocs_profile import profile, shipped

FABRIC = """
fabric: lab
gpus_per_server: 2
nic_rate: 100Gb/s
nics: {{optical: 2, electrical: 1}}
regions: [{{servers: 3, ocs: {ocs}}}]
scale: {{bytes: 1000, dilation: 2}}
"""


def settled_ms(made: Profile, *commands: list[tuple[int, int]]) -> float:
    """How long the last command's light takes, on a switch of that kind."""
    assert made.ports is not None
    timers, commanded = VirtualTimers(), 0
    store = Store(MemoryCrossbar(Ports(made.ports, made.ports)), timers, Build(made))
    for pairs in commands:
        timers.pass_all()
        commanded = timers.now_ns()
        store.add(pairs)
    return (store.settled_at_ns - commanded) / 1e6


def test_these_profiles_ship() -> None:
    assert shipped() == [
        *("calient-320", "fast-10us", "palomar-136", "polatis-16x16", "polatis-192x192", "polatis-576"),
    ]


@pytest.mark.parametrize(
    ("name", "ports", "fixed_ms"),
    [
        ("calient-320", 320, 80),
        ("fast-10us", None, 0.01),
        ("palomar-136", 136, 10),
        ("polatis-16x16", 16, 20),
        ("polatis-192x192", 192, 20),
        ("polatis-576", 576, 20),
    ],
)
def test_a_profile_has_its_ports_and_its_time(name: str, ports: int | None, fixed_ms: float) -> None:
    made = profile(name)
    assert (made.name, made.ports, made.settle.fixed_ns / 1e6) == (name, ports, fixed_ms)


def test_a_piezo_switch_settles_within_25_ms() -> None:
    times = [settled_ms(profile("polatis-16x16"), [(1, 17)], [(p, p + 16)]) for p in range(2, 17)]
    assert all(15 <= time <= 25 for time in times)


def test_a_mems_switch_takes_longer_for_several_and_longest_if_it_has_to_part_older_ones_first() -> None:
    calient = profile("calient-320")
    assert settled_ms(calient, [(1, 321)]) <= 100
    assert 100 < settled_ms(calient, [(1, 321), (2, 322)]) <= 200
    assert 400 < settled_ms(calient, [(1, 321), (2, 322)], [(1, 322), (2, 321)]) <= 500


def test_a_profile_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("vendor: Mine\nports: 8\nsettle: {fixed: 3ms, per_connection: 1ms}\nbusy: refuse\n")
    path = tmp_path / "fabric.yaml"
    path.write_text(
        FABRIC.format(ocs=f"{{profile: {mine}, startup: volatile, link_up: 5ms, link_down: true}}")
    )
    ocs = plan(load.fabric(path).wired(), Management("198.18.0.0/24")).ocses[0]
    assert (ocs.ports, ocs.settle_ns, ocs.link_up_ns, ocs.link_down) == (8, 6_000_000, 10_000_000, True)
    assert (ocs.profile.vendor, ocs.profile.startup, ocs.profile.busy) == ("Mine", "volatile", "refuse")
    assert ocs.profile.settle.serial_ns == 2_000_000


def test_what_stands_beside_a_profile_comes_before_it(tmp_path: Path) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC.format(ocs="{profile: polatis-16x16, settle: 1ms, ports: 12}"))
    ocs = plan(load.fabric(path).wired(), Management("198.18.0.0/24")).ocses[0]
    assert (ocs.ports, ocs.settle_ns, ocs.profile.settle.jitter_ns) == (12, 2_000_000, 10_000_000)


def test_all_that_is_wrong_with_a_profile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("vendor: a,b\nports: 1\nsettle: {fixed: -3ms, colour: red}\nloss: {monitors: some}\n")
    with pytest.raises(SpecError) as wrong:
        profile(str(path))
    assert [place for place, _ in wrong.value.faults] == [
        *("vendor", "ports", "settle.fixed", "settle.colour", "loss.monitors"),
    ]
