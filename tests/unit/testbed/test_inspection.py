"""Text of an inspection."""

from typing import Any

from moefabric.testbed.inspection import inspection_lines


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
