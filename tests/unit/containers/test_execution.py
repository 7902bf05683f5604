"""Output of a command in a container, which arrives in frames."""

import signal
import socket
import struct
import subprocess
import threading
from dataclasses import dataclass

import pytest

from moefabric.emulator.containers.execution import pass_output_on, signal_command

OUTPUT = [(1, b"one"), (2, b"wrong"), (1, b""), (1, b" two" * 9000), (0, b"!"), (2, b"ly")]
WIRE = b"".join(struct.pack(">BxxxI", stream, len(data)) + data for stream, data in OUTPUT)


def outputs_of(
    wire: bytes, size: int, capture: pytest.CaptureFixture[bytes], *, has_terminal: bool = False
) -> tuple[bytes, bytes]:
    """Return what reaches standard output and error if the engine sends parts of a size."""
    sender, receiver = socket.socketpair()

    def send() -> None:
        with sender:
            for start in range(0, len(wire), size):
                sender.sendall(wire[start : start + size])

    with receiver:
        thread = threading.Thread(target=send)
        thread.start()
        pass_output_on(receiver, has_terminal=has_terminal)
        thread.join()
    out, error = capture.readouterr()
    return out, error


@pytest.mark.parametrize("size", [1, 7, 8, 4096, 1 << 20])
def test_frames_are_complete_however_they_are_cut(
    size: int, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    out, error = outputs_of(WIRE, size, capsysbinary)
    assert out == b"".join(data for number, data in OUTPUT if number != 2)
    assert error == b"wrongly"


def test_output_ends_with_the_connection(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert outputs_of(WIRE[:17], 100, capsysbinary) == (b"one", b"")


def test_terminal_has_one_stream_without_frames(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert outputs_of(b"any\x01bytes", 3, capsysbinary, has_terminal=True) == (b"any\x01bytes", b"")


@dataclass
class Engine:
    """What an engine reports of its command."""

    pid: int
    is_running: bool

    def exec_inspect(self, _command: str) -> dict[str, int]:
        return {"Pid": self.pid, "Running": self.is_running}


@pytest.mark.parametrize("is_running", [True, False])
def test_process_that_has_the_pid_of_an_ended_command_gets_no_signal(is_running: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        signal_command(Engine(process.pid, is_running), "command", signal.SIGUSR1)
        process.kill()
    assert process.returncode == -(signal.SIGUSR1 if is_running else signal.SIGKILL)


def test_signal_to_a_command_without_a_process_is_nothing() -> None:
    signal_command(Engine(0, is_running=False), "command", signal.SIGUSR1)
    with subprocess.Popen(["true"]) as ended:
        pass
    signal_command(Engine(ended.pid, is_running=False), "command", signal.SIGUSR1)
