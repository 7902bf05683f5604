"""`moefabric capture`: frames of a running fabric as a pcapng file."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moefabric import FabricError, duration_ns
from moefabric.api.commands import FILE, check_writable
from moefabric.ui.cli.command import cli_command, name_option, part_argument
from moefabric.ui.cli.options import SecondsType, parse_option, running_lab

if TYPE_CHECKING:
    from moefabric.api.lab import Lab

RECONFIGURATION: Final = "reconfiguration"
_SIZES: Final = {"frames": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class Until:
    """Conditions that end a capture; None and False for no limit."""

    frames: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    reconfiguration: bool = False


def parse_until(text: str | None) -> Until:
    """Return the end of a capture: `100frames`, `10MB`, `5s` or `reconfiguration`.

    Raises:
        ValueError: If the text is none of these.
    """
    if text is None:
        return Until()
    if text == RECONFIGURATION:
        return Until(reconfiguration=True)
    for unit, factor in _SIZES.items():
        number = text.removesuffix(unit)
        if number != text and number.strip().isdecimal():
            count = factor * int(number)
            return Until(frames=count) if unit == "frames" else Until(bytes=count)
    try:
        return Until(seconds=duration_ns(text) / 1e9)
    except ValueError:
        known = "100frames, 10MB, 5s or reconfiguration"
        raise ValueError(f"{text!r} is no end of a capture such as {known}") from None


@cli_command(
    "moefabric capture s0/o0~s1/o0 --until 10MB --summary",
    "moefabric capture lab ocs0 -w ocs0.pcap --until reconfiguration",
)
@part_argument("place", "places")
@click.option("--write", "-w", "file", type=FILE, help="The file. Default: PLACE.pcap.")
@click.option(
    "--length", type=click.IntRange(1, 65_535), default=256, help="Bytes to keep of each frame."
)
@click.option(
    "--seconds",
    type=SecondsType(min=0),
    metavar="SECONDS",
    help="End after so long. Default: no end.",
)
@click.option(
    "--until",
    metavar="END",
    callback=parse_option(parse_until),
    help="End after 100frames, 10MB or 5s, or with the next reconfiguration. "
    "With --seconds, too: at whichever comes first.",
)
@click.option("--summary", is_flag=True, help="Print who sent how much to whom.")
@name_option
def capture(
    place: str,
    file: Path | None,
    length: int,
    seconds: float | None,
    until: Until,
    *,
    summary: bool,
    name: str | None,
) -> None:
    """Capture the frames at PLACE.

    It is a NIC such as s0/o0, a server, for the frames of its programs, a circuit such as
    s0/o0~s3/o0, for both its NICs, a link such as leaf0~spine0, a switch such as leaf0, for all its
    ports, an OCS, for its management, or `management`, for controllers and switches. In the file,
    frames of optical NICs have the circuit that was lit as their comment.
    """
    check_writable(file)
    lab, stopped = running_lab(name), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    limits = {"most_frames": until.frames, "most_bytes": until.bytes}
    with lab.capture(place, file, length, **limits) as captured:
        begin_ns = time.monotonic_ns()  # the clock of events
        click.echo(f"{place}: to {captured.path}", err=True)
        _set_after(stopped, captured.wait_full)
        if until.reconfiguration:
            _set_after(stopped, lambda: _wait_reconfiguration(lab, begin_ns))
        ends_s = [end_s for end_s in (until.seconds, seconds) if end_s is not None]
        stopped.wait(min(ends_s, default=None))
    lost = f", {captured.dropped:,} more were missed" if captured.dropped else ""
    click.echo(f"{place}: {captured.frames:,} frames in {captured.path}{lost}")
    if summary:
        from moefabric.api.capture_summary import summarize

        click.echo("\n".join(summarize(captured.path, lab.wiring).lines()))


def _set_after(event: threading.Event, wait: Callable[[], object]) -> None:
    """Set the event once `wait` has returned."""

    def run() -> None:
        wait()
        event.set()

    threading.Thread(target=run, daemon=True).start()


def _wait_reconfiguration(lab: "Lab", begin_ns: int) -> None:
    """Return when an OCS has changed cross-connects since an instant, and new ones have light.

    An answer of the OCS's process comes after those to all commands that waited for the light. One
    message may remove circuits and connect others, which are tuning then.
    """
    with suppress(FabricError):  # the fabric ends
        for event in lab.events(follow=True):
            if event["at_ns"] > begin_ns and event["kind"] in ("changed", "settled"):
                ports = lab.ocs(event["ocs"])["ports"]
                if all(port["state"] != "tuning" for port in ports):
                    return
