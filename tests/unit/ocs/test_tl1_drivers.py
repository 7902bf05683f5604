"""TL1 commands of public drivers of Polatis switches, and the patterns that they look for."""

import re

import pytest

from moefabric.core.ocs import DeviceProfile, SettleTime
from moefabric.emulator.ocs.device_spec import DeviceSpec
from tests.support.ocs_lab import BenchClient, OcsBench


@pytest.fixture
def client() -> BenchClient:
    """Return a client that has logged in to a switch of 16 ports with two patches."""
    bench = OcsBench(16, DeviceSpec(DeviceProfile(settle=SettleTime(fixed_ns=0)), serial="002414"))
    client = bench.client("tl1")
    client.send(b"ACT-USER::root:1::root;ENT-PATCH::1&2,17&20:2:;INH-MSG-ALL:::3:;\n")
    return client


@pytest.mark.parametrize(
    ("sent", "pattern", "expected"),
    [
        pytest.param(
            'RTRV-EQPT:"":SYSTEM:7:::PARAMETER=SIZE;\n',
            r"SYSTEM:SIZE=(\d+)x(\d+)",
            [("16", "16")],
            id="size",
        ),
        pytest.param(
            "RTRV-EQPT::SYSTEM:7:::PARAMETER=SIZE;\n",
            r"SYSTEM:SIZE=(\d+)x(\d+)",
            [("16", "16")],
            id="bare-size",
        ),
        pytest.param('RTRV-INV:"":OCS:7:;\n', r"SN=(\w+)", ["002414"], id="serial"),
        pytest.param(
            'RTRV-NETYPE:""::7:;\n',
            r'"(.*),(.*),(.*),(.*)"',
            [("Polatis", "N-OST-16x16-LU1-DMHNS", "OCS", "6.5.2.18")],
            id="identity",
        ),
        pytest.param(
            'RTRV-PATCH:""::7:;\n', r'"(\d+),(\d+)"', [("1", "17"), ("2", "20")], id="patches"
        ),
        pytest.param(
            "rtrv-patch:::7:;\n",
            r'(?m)^\W*"(\d+),(\d+)"',
            [("1", "17"), ("2", "20")],
            id="patches-in-lower-case",
        ),
        pytest.param(
            "rtrv-patch::20&3:7:;\r\n", r'"(\d+),(\d+)"', [("2", "20")], id="patches-of-ports"
        ),
        pytest.param(
            'RTRV-PORT-SHUTTER:"":1&&2:7:;\n',
            r'"(\d+):(\S+)"',
            [("1", "OPEN"), ("2", "OPEN")],
            id="shutters",
        ),
        pytest.param(
            "RTRV-PORT-POWER::3&18:7:;\n",
            r'(?m)^\W*"(\d+):(\S+)"',
            [("3", "0.00"), ("18", "-60.00")],
            id="power",
        ),
        pytest.param(
            "RTRV-PORT-PMON::1&&2:7:;\n",
            r'(?m)^\W*"(\d+):(\S+),(\S+),(\S+)"',
            [("1", "1550.00", "0.00", "4"), ("2", "1550.00", "0.00", "4")],
            id="monitors",
        ),
        pytest.param(
            "RTRV-EQPT::PMON:7:::PARAMETER=CONFIG;\n",
            r'"PMON::PORT=(1|32),MODE=(\S+)"',
            [("1", "INPUT"), ("32", "OUTPUT")],
            id="modes",
        ),
        pytest.param(
            "ED-EQPT::TIMEOUT:7:::ADMIN=60;\n", r"M  7 (COMPLD)", ["COMPLD"], id="time-out"
        ),
        pytest.param('ENT-PATCH:"":3,19:7:;\n', r"M  7 (COMPLD)", ["COMPLD"], id="enter"),
        pytest.param('DLT-PATCH:"":1&2:7:;\n', r"M  7 (COMPLD)", ["COMPLD"], id="delete"),
        pytest.param("CANC-USER::root:7:;\n", r"M  7 (COMPLD)", ["COMPLD"], id="log-out"),
    ],
)
def test_replies_match_patterns_of_public_drivers(
    client: BenchClient, sent: str, pattern: str, expected: list[object]
) -> None:
    reply = client.send(sent.encode()).decode()
    response = re.search(r"M\s+7\s+([a-zA-Z ]+)[^;]*;", reply)
    assert response is not None
    assert response[1] == "COMPLD"
    assert reply.endswith(";")
    assert re.findall(pattern, reply) == expected


def test_header_has_name_of_switch_or_nil() -> None:
    client = OcsBench(16).client("tl1")
    client.send(b"ACT - USER::root:1::root;\n")
    assert "( nil )" in client.send(b"RTRV-HDR:::2:;\n").decode()
    client.send(b"SET-SID:::3::lab7;")
    reply = client.send(b"RTRV-HDR:::4:;\n").decode()
    assert (re.search(r"(\S+)", reply) or [""])[0] == "lab7"
    assert "COMPLD" in client.send(b'RTRV-PATCH:"lab7"::5:;\n').decode()
