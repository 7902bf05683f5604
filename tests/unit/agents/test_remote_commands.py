"""Commands on real hosts: their words there, and their end with the session or in silence."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from moefabric.agents.engine import guarded_process
from moefabric.agents.remote.command import _words_there
from moefabric.agents.remote.ssh import SshHost

SLEEPING = ["sh", "-c", "sleep 60 & echo $!; wait"]


def guarded(command: Sequence[str], silence_s: float = 30.0) -> "subprocess.Popen[bytes]":
    source = Path(guarded_process.__file__).read_text()
    words = [sys.executable, "-c", source, str(silence_s), "/no such folder", *command]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_status_and_output_of_a_command_pass() -> None:
    process = guarded(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert process.wait(10) == 7
    assert process.communicate() == (b"out\n", b"err\n")


def test_command_that_is_missing_has_the_status_of_a_shell() -> None:
    process = guarded(["no-such-program"])
    _, err = process.communicate(timeout=10)
    assert process.returncode == 127
    assert err == b"no-such-program: No such file or directory\n"


@pytest.mark.parametrize("cause", ["end of the session", "silence"])
def test_command_and_its_children_end_with_the_session_or_in_silence(cause: str) -> None:
    process = guarded(SLEEPING, 0.5 if cause == "silence" else 30.0)
    assert process.stdin is not None
    assert process.stdout is not None
    child = int(process.stdout.readline())
    if cause == "end of the session":
        process.stdin.close()
    assert process.wait(10) == 128 + 15
    process.stdin.close()
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_words_are_those_of_the_host(tmp_path: Path) -> None:
    facts = tmp_path / "s1.facts"
    facts.write_text(json.dumps({"ranks": "/tmp/moefabric-x/ranks.sock"}))
    host = SshHost("gpu1", python="python3.12")
    command = ["env", "GLOO_SOCKET_IFNAME=eth0", "MOEFABRIC_AGENT=/run/s1", sys.executable, "a.py"]
    assert [*_words_there(command, host, "enp2s0", facts)] == [
        "env",
        "GLOO_SOCKET_IFNAME=enp2s0",
        "MOEFABRIC_AGENT=/tmp/moefabric-x/ranks.sock",
        "python3.12",
        "a.py",
    ]
