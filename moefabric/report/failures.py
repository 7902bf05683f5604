"""The failures of a run: what broke, who saw it when, how the job went on and what that cost; as rows, and as a picture of each iteration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich import box
from rich.table import Column, Table
from rich.text import Text

from moefabric.report import reading, svg, words

_LEFT, _RIGHT, _TOP, _HEAD, _ROW, _GAP = 64.0, 84.0, 46.0, 42.0, 16.0, 18.0
_KINDS = {
    "attention": "attention",
    "expert": "expert computation",
    "dispatch": "dispatch",
    "combine": "combine",
    "tensor": "partial sums",
    "other": "other",
    "void": "to be done anew",
}
_MARKS = {"injected": "it breaks", "detected": "detected", "recovered": "recovered"}


@dataclass(frozen=True)
class Lane:
    """What a server did for a while, in seconds of the iteration."""

    server: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Failed:
    """One failure of one fabric. Detection, recovery and mending are wall seconds after it; the slow-downs are shares of a healthy iteration."""

    fabric: str
    kind: str
    what: str
    iteration: int | None
    detected_s: float | None
    recovered_s: float | None
    slow_down: float | None
    slow_down_after: float | None
    detected_by: str
    action: str
    ok: bool
    measured_s: float | None = None
    marks: tuple[tuple[str, float], ...] = ()
    lanes: tuple[Lane, ...] = ()

    @property
    def name(self) -> str:
        """What broke: `nic s0/e0`."""
        return f"{self.kind} {self.what}"


def failed(run: Mapping[str, Any]) -> list[Failed]:
    """Every failure of every fabric, in the run's order."""
    return [
        _failed(str(row.get("fabric", "")), each)
        for row in run.get("results") or ()
        if isinstance(row, Mapping)
        for each in row.get("failures") or ()
        if isinstance(each, Mapping)
    ]


def _failed(fabric: str, row: Mapping[str, Any]) -> Failed:
    iteration = reading.number(row.get("iteration"))
    marks = ((str(name), reading.number(at)) for name, at in (row.get("marks") or {}).items())
    return Failed(
        fabric=fabric,
        kind=str(row.get("kind", "")),
        what=" ".join(map(str, row.get("what") or ())),
        iteration=None if iteration is None else int(iteration),
        detected_s=reading.number(row.get("detected_s")),
        recovered_s=reading.number(row.get("recovered_s")),
        slow_down=reading.number(row.get("slow_down")),
        slow_down_after=reading.number(row.get("slow_down_after")),
        detected_by=words.printable(row.get("detected_by") or ""),
        action=words.printable(row.get("action") or ""),
        ok=bool(row.get("ok")),
        measured_s=reading.number(row.get("measured_s")),
        marks=tuple((name, at) for name, at in marks if at is not None),
        lanes=tuple(_lane(each) for each in row.get("lanes") or ()),
    )


def _lane(row: Mapping[str, Any]) -> Lane:
    start, end = (reading.number(row.get(key)) or 0.0 for key in ("start_s", "end_s"))
    return Lane(str(row.get("server", "")), str(row.get("kind", "")), start, end)


def terminal(listed: Sequence[Failed]) -> Table:
    """As a table for the terminal."""
    right = [
        Column(name, justify="right") for name in ("iteration", "detected", "recovered", "slow-down", "later")
    ]
    drawn = Table(
        "failure", *right, "how it went on",
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    several = len({each.fabric for each in listed}) > 1
    for each in listed:
        name = f"{each.fabric}: {each.name}" if several else each.name
        drawn.add_row(
            Text(words.printable(name), style="bold" if each.ok else "bold red"),
            str(each.iteration) if each.iteration is not None else words.NOTHING,
            words.seconds(each.detected_s),
            words.seconds(each.recovered_s),
            words.error(each.slow_down),
            words.error(each.slow_down_after),
            Text(each.action if each.ok else "not seen to recover", overflow="fold"),
        )
    return drawn


def picture(listed: Sequence[Failed]) -> Markup:
    """The iteration in which each fell, all on one scale: what the servers concerned did, and when it broke, was detected, was recovered from."""
    shown = [each for each in listed if each.lanes and each.measured_s]
    if not shown:
        return Markup()
    across = svg.Scale(0.0, max(each.measured_s or 0.0 for each in shown), _LEFT, svg.WIDTH - _RIGHT)
    drawn, y = [svg.legend(_LEFT, 14, _legend(shown))], _TOP
    for each in shown:
        servers = _servers(each)
        drawn += _strip(each, servers, across, y)
        y += _HEAD + len(servers) * (_ROW + 3) + _GAP
    grid = _axis(across, y - _GAP + 6)
    return svg.picture(svg.WIDTH, y - _GAP + 42, "The iterations in which something broke", [*grid, *drawn])


def _servers(each: Failed) -> list[str]:
    return list(dict.fromkeys(lane.server for lane in each.lanes))


def _legend(shown: Sequence[Failed]) -> list[tuple[str, str]]:
    there = {_drawn_as(lane.kind) for each in shown for lane in each.lanes}
    kinds = [(f"k-{kind}", name) for kind, name in _KINDS.items() if kind in there]
    return kinds + [(f"m-{mark}", name) for mark, name in _MARKS.items()]


def _drawn_as(kind: str) -> str:
    return kind if kind in _KINDS else "other"


def _strip(each: Failed, servers: Sequence[str], across: svg.Scale, y: float) -> list[Markup]:
    length = each.measured_s or 0.0
    heading = f"{each.name}, iteration {each.iteration}"
    x = _LEFT + svg.text_width(words.printable(heading), 14) + 18
    drawn = [
        svg.label(_LEFT, y + 14, words.printable(heading), "strong"),
        svg.label(x, y + 14, f"{_seen(each)}", "small"),
        svg.label(_LEFT, y + 30, each.action, "small"),
        svg.label(across(length) + 8, y + _HEAD + 12, words.error(each.slow_down), "strong"),
    ]
    top = y + _HEAD
    bottom = top + len(servers) * (_ROW + 3) - 3
    for position, server in enumerate(servers):
        at = top + position * (_ROW + 3)
        drawn.append(svg.label(_LEFT - 10, at + 12, server, "tick", "end"))
        drawn.append(svg.rect(_LEFT, at, across(length) - _LEFT, _ROW, "lane"))
        drawn += [
            svg.rect(
                across(lane.start_s), at, max(0.5, across(lane.end_s) - across(lane.start_s)), _ROW,
                f"k-{_drawn_as(lane.kind)}",
                title=f"{server}: {lane.kind}, {words.seconds(lane.end_s - lane.start_s)}",
            )
            for lane in each.lanes
            if lane.server == server and lane.kind not in ("reconfiguration", "dark")
        ]  # fmt: skip
    return drawn + _marks(each, across, top, bottom)


def _seen(each: Failed) -> str:
    if each.detected_s is None:
        return "not detected" if not each.ok else "needed nobody"
    recovered = words.seconds(each.recovered_s) if each.recovered_s is not None else "never"
    return f"detected after {words.seconds(each.detected_s)}, recovered after {recovered}"


def _marks(each: Failed, across: svg.Scale, top: float, bottom: float) -> list[Markup]:
    drawn = []
    for name, at in each.marks:
        if name in _MARKS and each.measured_s and 0 <= at <= 1.02 * each.measured_s:
            hint = svg.tag("title", f"{_MARKS[name]} at {words.seconds(at)}")
            x = across(at)
            drawn.append(
                svg.tag(
                    "g",
                    hint,
                    svg.line(x, top - 5, x, bottom + 5, f"m-{name}"),
                    svg.rect(x - 3, top - 8, 6, 5, f"m-{name}"),
                )
            )
    return drawn


def _axis(across: svg.Scale, bottom: float) -> list[Markup]:
    factor, unit = words.time_unit(across.high)
    drawn = []
    for tick in svg.ticks(0, across.high / factor, 8):
        x = across(tick * factor)
        drawn += [
            svg.line(x, _TOP, x, bottom, "grid"),
            svg.label(x, bottom + 16, f"{tick:g}", "tick", "middle"),
        ]
    return [*drawn, svg.label(across.end + 12, bottom + 16, unit, "tick")]
