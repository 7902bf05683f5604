"""What other users of the machine and other machines reach of a fabric (docs/security.md)."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from moefabric import Lab, load_fabric
from moefabric.emulator.linux import namespaces
from moefabric.runtime.run_directory import run_root
from tests.support.namespaces import must, own_machine
from tests.support.paths import EXAMPLES

PYTHON: Final = "/usr/bin/python3"
NOBODY: Final = 65534
HTTP, OPENFLOW = (8080, 8081), (6653, 6654)
OCS: Final = {5025: "*idn?\n", 3082: "RTRV-HDR:::1;", 8008: "GET / HTTP/1.0\r\n\r\n"}
PROBE: Final = """
import json, os, socket, sys
def reply(family, address, sent):
    with socket.socket(family) as sock:
        sock.settimeout(2)
        try:
            sock.connect(address)
        except OSError:
            return None
        try:
            sock.sendall(sent.encode())
            return sock.recv(4096).decode("latin-1")
        except OSError:
            return ""
folder, targets = sys.argv[1], json.loads(sys.argv[2])
paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
print(json.dumps({
    "read": [path for path in paths if os.path.isfile(path) and os.access(path, os.R_OK)],
    "written": [path for path in (folder, *paths) if os.access(path, os.W_OK)],
    "joined": [path for path in paths if reply(socket.AF_UNIX, path, "") is not None],
    "replies": [reply(socket.AF_INET, (host, port), sent) for host, port, sent in targets],
}))
"""

LAN: Final = """
ip link add lan type veth peer name lan0 netns $0
ip address add 192.0.2.1/24 dev lan
ip link set lan up
echo 1 > /proc/sys/net/ipv4/ip_forward
nsenter --net=$0 sh -ec '
ip address add 192.0.2.2/24 dev lan0
ip link set lan0 up
ip route add 198.18.0.0/15 via 192.0.2.1
'
"""
"""Joins the machine with another one, whose namespace is given, and routes between networks."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with own_machine():
        run_root().chmod(0o755)
        fabric = load_fabric(EXAMPLES / "fabric.yaml", fabric="reach", scale={"bytes": 2000})
        with fabric.up() as lab:
            yield lab


def doors(lab: Lab) -> dict[str, list[tuple[str, int, str]]]:
    """Return address, port and first words for each kind of listener."""
    host = lab.wiring.management.host_address
    ocs = lab.wiring.management.ocs_address(lab.fabric.regions[0])
    words = "GET /circuits HTTP/1.1\r\nHost: {}:{}\r\n\r\n"
    return {
        "http": [(host, port, words.format(host, port)) for port in HTTP],
        "openflow": [(host, port, words) for port in OPENFLOW],
        "ocs": [(ocs, port, sent) for port, sent in OCS.items()],
    }


def reached(folder: Path, targets: list[tuple[str, int, str]], *inside: str, **user: object) -> Any:
    """Return what a program reaches: files, sockets, and what listeners reply, None if nothing."""
    words = [*inside, PYTHON, "-c", PROBE, str(folder), json.dumps(targets)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, **user)  # type: ignore[call-overload]
    return json.loads(done.stdout)


def of_nobody(lab: Lab, kind: str) -> Any:
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return reached(lab.run_directory.path, doors(lab)[kind], **user)


def test_another_user_reads_no_secret_and_can_lock_and_join_nothing(lab: Lab) -> None:
    lab.check()
    found = of_nobody(lab, "http")
    read = {Path(path).relative_to(lab.run_directory.path) for path in found["read"]}
    known = {"fabric.json", "hosts", "nodes.json", "version"}
    assert {str(path) for path in read if path.suffix not in {".log", ".jsonl", ".pid"}} == known
    assert {path.parts[0] for path in read} - known == {"controllers", "log"}
    assert (found["written"], found["joined"]) == ([], [])
    assert all(reply.startswith("HTTP/1.1 401 ") for reply in found["replies"])


def test_another_user_reaches_optical_switches_by_their_languages(lab: Lab) -> None:
    scpi, tl1, restconf = of_nobody(lab, "ocs")["replies"]
    assert scpi.startswith("Polatis,")
    assert "Not logged in" in tl1
    assert restconf.startswith("HTTP/1.1 401 ")


def test_another_machine_is_closed_by_controllers_and_reaches_no_optical_switch(lab: Lab) -> None:
    with namespaces.held_new() as peer:
        inside = ("nsenter", f"--net={peer}")
        must("sh", "-ec", LAN, peer)
        replies = {
            kind: reached(Path("/none"), targets, *inside)["replies"]
            for kind, targets in doors(lab).items()
        }
    assert replies == {"http": ["", ""], "openflow": ["", ""], "ocs": [None, None, None]}


def test_program_on_a_server_reads_files_of_the_machine(lab: Lab) -> None:
    read = lab.exec("s0", ["cat", str(lab.run_directory.token_file)], check=True).stdout
    assert read.strip() == lab.run_directory.read_token()
