"""Python's HTTP server on a fabric whose circuits change during a download."""

import hashlib
import subprocess
import time
from pathlib import Path

import pytest

from moefabric.ui.testing import FabricUnderTest

PORT = 8000
SIZE = 20_000_000
SERVER = f"""
import http.server, os, socketserver, sys
os.chdir(sys.argv[2])
socketserver.TCPServer.allow_reuse_address = True
handler = http.server.SimpleHTTPRequestHandler
server = socketserver.ThreadingTCPServer((sys.argv[1], {PORT}), handler)
print("ready", flush=True)
server.serve_forever()
"""  # `python3 -m http.server` asks for its own name, and a fabric has no DNS


@pytest.fixture
def url(shared_fabric: FabricUnderTest, tmp_path: Path) -> str:
    """Serve a folder with one file from s0, and return the file's address."""
    (tmp_path / "file").write_bytes(bytes(range(256)) * (SIZE // 256))
    address = shared_fabric.address("s0")
    command = ["python3", "-c", SERVER, address, str(tmp_path)]
    server = shared_fabric.popen("s0", command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return f"http://{address}:{PORT}/file"


def downloads(fabric: FabricUnderTest, url: str, file: Path) -> "subprocess.Popen[bytes]":
    """Start a download on s1."""
    program = f"import urllib.request as u; u.urlretrieve('{url}', '{file}')"
    return fabric.popen("s1", ["python3", "-c", program])


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_download_goes_on_while_light_moves(
    shared_fabric: FabricUnderTest, url: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    download = downloads(shared_fabric, url, tmp_path / "copy")
    changes = 0
    while download.poll() is None:
        shared_fabric.lit("s0~s1")
        shared_fabric.lit("s0~s2")
        changes += 2
        assert time.monotonic() - started < 60, "the download stands still"
    assert download.returncode == 0
    assert changes > 2
    assert digest(tmp_path / "copy") == digest(tmp_path / "file")


def test_bytes_use_the_circuit(shared_fabric: FabricUnderTest, url: str, tmp_path: Path) -> None:
    shared_fabric.lit("s0~s1")
    with shared_fabric.capture("s1/o0") as light, shared_fabric.capture("s1/e0") as eps:
        assert downloads(shared_fabric, url, tmp_path / "copy").wait(60) == 0
    assert light.frames > 100 * max(1, eps.frames)


def test_download_survives_a_lost_optical_nic(
    shared_fabric: FabricUnderTest, url: str, tmp_path: Path
) -> None:
    shared_fabric.lit("s0~s1")
    download = downloads(shared_fabric, url, tmp_path / "copy")
    with shared_fabric.fault("nic", "s1/o0"):
        assert download.wait(60) == 0
    assert digest(tmp_path / "copy") == digest(tmp_path / "file")
