"""Text of an inspection."""

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
