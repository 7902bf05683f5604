"""Text of an inspection."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from moefabric.core.ocs import DeviceProfile, Ocs, OcsControl, UserAccount
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.testbed.inspection import access_entries, far_end, inspection_lines, ocs_entry
from tests.support.fabrics import fabric

RUN_DIR = RunDirectory(Path("/run/moefabric/lab"))
EMPTY = {"fabric": "lab", "servers": [], "ocs": [], "controllers": [], "processes": []}


def access(**changes: object) -> list[str]:
    """Return the lines about access to a fabric with this OCS."""
    wired = fabric()
    region = replace(wired.regions[0], ocs=replace(wired.regions[0].ocs, **changes))  # type: ignore[type-var]
    wired = replace(wired, regions=(region,))
    wiring = FabricWiring(wired, ManagementNetwork.example_for(wired))
    inspection = EMPTY | {"access": list(access_entries(wiring, RUN_DIR))}
    return inspection_lines(inspection)[1:]


def test_text_has_all_management_interfaces_with_their_logins() -> None:
    assert access() == [
        "  access to          by        at                      login",
        "  ocs0               RESTCONF  198.18.0.2:8008         admin/root",
        "  ocs0               SCPI      198.18.0.2:5025         none",
        "  ocs0               TL1       198.18.0.2:3082         admin/root, root/root",
        "  controller of r0   HTTP      http://198.18.0.1:8081  token in /run/moefabric/lab/token",
        "  controller of eps  HTTP      http://198.18.0.1:8080  token in /run/moefabric/lab/token",
    ]


def test_passwords_of_a_profile_are_not_shown() -> None:
    lines = access(profile=DeviceProfile(users=(UserAccount("me", "secret"),)))
    assert lines[1].endswith("users of its profile")
    assert lines[2].endswith("none"), "SCPI has no login"
    assert "secret" not in "".join(lines)


def test_a_real_ocs_is_at_its_own_address() -> None:
    lines = access(control=OcsControl(driver="tl1", address="192.0.2.10", user="lab"))
    assert lines[1].split() == ["ocs0", "TL1", "192.0.2.10:3082", "lab"]
    assert len(lines) == 4


def test_an_ocs_that_is_not_emulated_has_one_address() -> None:
    described = {"name": "ocs0", "management": "198.18.0.2", "scpi_port": 5025, "ports": 16}
    lit: dict[str, list[object]] = {"circuits": [], "dark": []}
    control = OcsControl(address="192.0.2.10", port=7025)
    for ocs, at in (
        (Ocs("ocs0", 16), "SCPI 198.18.0.2:5025"),
        (Ocs("ocs0", 16, control=control), "not emulated, at 192.0.2.10:7025"),
    ):
        entry = ocs_entry(described, ocs)
        [_, line] = inspection_lines(EMPTY | {"ocs": [entry | lit]})
        assert line.splitlines()[0] == f"  ocs0  16 ports, {at}"


def test_text_names_other_machines_of_processes_and_lost_machines() -> None:
    inspection = {
        "fabric": "lab",
        "servers": [],
        "ocs": [],
        "controllers": [],
        "processes": [{"name": "ocs0", "pid": 7}, {"name": "ocs1", "pid": 8, "machine": "b"}],
        "lost_machines": {"c": "silent for 20 s"},
    }
    assert inspection_lines(inspection) == [
        "fabric lab",
        "  process ocs0  7",
        "  process ocs1 on b  8",
        "  machine c is lost: silent for 20 s",
    ]


def test_text_has_ended_processes_and_light_that_nobody_knows() -> None:
    place = {"name": "ocs0", "management": "198.18.0.9", "scpi_port": 5025, "ports": 16}
    ocs = place | {"circuits": None, "dark": []}
    ended = [{"name": "switches", "status": -9}, {"name": "agents-0", "status": 3}]
    lines = inspection_lines(EMPTY | {"ocs": [ocs], "ended": ended})
    assert lines[1].split("\n")[1].strip() == "lit: unknown"
    assert lines[2:] == [
        "  process switches  ended (signal 9)",
        "  process agents-0  ended (exit status 3)",
    ]


def test_far_ends_of_nics_are_ports_of_ocs_and_leaf() -> None:
    wired = fabric(2, 1, regions=(2, 2))
    ends = [far_end(wired, nic) for nic in wired.nics("s3")]
    assert ends == [
        {"of": "ocs1", "ports": [3, 7]},
        {"of": "ocs1", "ports": [4, 8]},
        {"of": "leaf0", "ports": [4]},
    ]
    keys = {"rate_bps": 1e9, "carrier": True}
    nics = [
        {"name": str(nic), "far": far, **keys}
        for nic, far in zip(wired.nics("s3"), ends, strict=True)
    ]
    server = {"name": "s3", "addresses": ["10.0.0.1"], "management": "198.18.0.2", "nics": nics}
    switches = [{"name": "s3", "datapath_id": 4}, {"name": "leaf0", "datapath_id": 65536}]
    lines = inspection_lines(EMPTY | {"servers": [server], "switches": switches})
    text = " ".join(" ".join(lines).split())
    assert "datapath 4 s3/o0->ocs1:3/7(1Gb/s) s3/o1->ocs1:4/8(1Gb/s) s3/e0->leaf0:4(1Gb/s)" in text
    assert lines[-1] == "  leaf0  datapath 65536"


def test_text_fits_80_columns_and_loses_nothing() -> None:
    nics = [{"name": f"s0/o{n}", "rate_bps": 400e9, "carrier": n > 0} for n in range(7)]
    addresses = [f"10.0.0.{n}" for n in range(1, 9)]
    server = {"name": "s0", "addresses": addresses, "management": "198.18.0.2", "nics": nics}
    circuits = [[f"s{n}/o0", f"s{n + 1}/o1"] for n in range(9)]
    place = {"management": "198.18.0.9", "scpi_port": 5025, "ports": 16}
    ocs = {"name": "ocs0", "circuits": circuits, "dark": [], **place}
    endpoints = {"openflow": "198.18.0.1:6653", "northbound": "https://198.18.0.1:8080"}
    controller = {"region": "r0", "rules": [], **endpoints}
    inspection: dict[str, Any] = {
        "fabric": "lab", "servers": [server], "ocs": [ocs], "controllers": [controller],
        "processes": [],
    }  # fmt: skip
    lines = "\n".join(inspection_lines(inspection)).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "s0 10.0.0.1..8 management 198.18.0.2 s0/o0(400Gb/s, no carrier) s0/o1(400Gb/s)" in text
    assert all(f"{a}~{b}" in text for a, b in circuits)
    assert "https://198.18.0.1:8080 0 rules" in text
