"""Floods by another user of the machine: controllers keep their OCS, and their doors stay open.

`FLOOD_SECONDS=600` has each last ten minutes.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moefabric import Lab, load_fabric
from moefabric.runtime.waiting import Deadline
from tests.support.namespaces import own_machine
from tests.support.paths import EXAMPLES

SECONDS = float(os.environ.get("FLOOD_SECONDS", "4"))
PYTHON = "/usr/bin/python3"
NOBODY = 65534
SCPI, OPENFLOW, HTTP = 5025, 6654, 8081
MATCHINGS = ["s0/o0~s1/o0", "s2/o0~s3/o0"], ["s0/o0~s2/o0", "s1/o0~s3/o0"]
FLOOD = """
import socket, sys, threading, time
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
begun, accepted, kept = threading.Event(), [], []
def connect():
    sock = socket.create_connection((host, port), 2)
    if not begun.is_set():
        accepted.append(1)
        if len(accepted) > 50:
            begun.set()
    return sock
def chat():
    while True:
        try:
            with connect() as sock:
                sock.settimeout(2)
                while True:
                    sock.sendall(b"*idn?\\n" * 100)
                    if not sock.recv(65536):
                        break
        except OSError:
            pass
def hold():
    while len(kept) < 1000:
        try:
            kept.append(connect())
        except OSError:
            time.sleep(0.01)
def storm():
    while True:
        try:
            connect().close()
        except OSError:
            pass
def rude():
    while True:
        try:
            with connect() as sock:
                sock.settimeout(2)
                sock.sendall(bytes([4, 77, 0, 8, 0, 0, 0, 1]))  # no switch sends this type
                while sock.recv(4096):
                    pass
        except OSError:
            pass
kinds = {"chatty": (chat, 80), "idle": (hold, 1), "storm": (storm, 4), "rude": (rude, 8)}
target, count = kinds[kind]
for _ in range(count):
    threading.Thread(target=target, daemon=True).start()
print("begun" if begun.wait(30) else f"{len(accepted)} connections", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with own_machine():
        fabric = load_fabric(EXAMPLES / "fabric.yaml", fabric="floods", scale={"bytes": 2000})
        with fabric.up() as lab:
            yield lab


@contextmanager
def flood(lab: Lab, kind: str, port: int) -> Iterator[None]:
    """Flood a port of the control plane as nobody; it has accepted 50 connections at the start."""
    management = lab.wiring.management
    is_ocs = port == SCPI
    host = management.ocs_address(lab.fabric.regions[0]) if is_ocs else management.host_address
    words = [PYTHON, "-c", FLOOD, kind, host, str(port)]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield
        assert process.poll() is None, "the flood has ended"


def lights_during(lab: Lab, seconds: float) -> list[float]:
    """Move light for some seconds; return how long each request took. None fails."""
    deadline, took = Deadline.after(seconds), list[float]()
    while deadline.remaining_s:
        begin_s = time.monotonic()
        circuits = MATCHINGS[len(took) % 2]
        assert list(lab.light(*circuits).circuits_after) == circuits
        took.append(time.monotonic() - begin_s)
    return took


FLOODS = [
    pytest.param("chatty", SCPI, id="80-chatty-scpi-clients"),
    pytest.param("idle", SCPI, id="1000-silent-scpi-clients"),
    pytest.param("storm", SCPI, id="scpi-storm"),
    pytest.param("storm", OPENFLOW, id="openflow-storm"),
    pytest.param("rude", OPENFLOW, id="openflow-clients-that-are-refused"),
    pytest.param("idle", HTTP, id="1000-silent-http-clients"),
]


def check_flood(lab: Lab, kind: str, port: int, seconds: float) -> None:
    log = lab.run_directory.log_folder / "controller-r0.jsonl"
    lab.light(*MATCHINGS[0])
    before = len(log.read_text().splitlines())
    with flood(lab, kind, port):
        took = lights_during(lab, seconds)
    moves = 8 * len(took)
    assert len(took) >= 2, took
    assert len(log.read_text().splitlines()) - before <= 40 + seconds + moves
    assert lab.light(*MATCHINGS[0]).phases.total_s < 5


@pytest.mark.timeout(300 + SECONDS)
@pytest.mark.parametrize(("kind", "port"), FLOODS)
def test_flood_of_another_user_leaves_light_under_control(lab: Lab, kind: str, port: int) -> None:
    check_flood(lab, kind, port, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "port"), FLOODS[:1])
def test_flood_of_ten_minutes(lab: Lab, kind: str, port: int) -> None:
    check_flood(lab, kind, port, 600)
