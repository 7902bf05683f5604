"""Programs of the machine: how their failures are reported."""

import pytest

from moefabric.core.errors import CommandFailedError, FabricError
from moefabric.emulator.linux.command import ip_batch, run


def test_failed_command_reports_argv_status_and_output() -> None:
    with pytest.raises(
        CommandFailedError, match=r"ls /no/such/place exited 2, saying: .*No such file or directory"
    ):
        run(["ls", "/no/such/place"])


def test_command_is_killed_after_timeout() -> None:
    with pytest.raises(
        CommandFailedError, match=r"sleep 60 exited -1, saying: no end within 0\.1 s"
    ):
        run(["sleep", "60"], timeout_s=0.1)


def test_batch_names_place_of_failed_line() -> None:
    lines = [("s0/o0", "link show dev lo"), ("s0/o1", "link show dev no-such")]
    with pytest.raises(
        FabricError, match=r's0/o1: ip link show dev no-such: Device "no-such" does not exist'
    ):
        ip_batch(lines)
