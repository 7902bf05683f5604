"""The page: the paper's tables and figures as predicted, in one HTML file that needs nothing else."""

from collections.abc import Callable, Iterable
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moefabric.paper import figures
from moefabric.paper.tables import CALIBRATED, OUTSIDE, TOLD, WITHIN, Paper
from moefabric.paper.text import last, said, said_error

PILLS = {WITHIN: "pass", OUTSIDE: "invalid", CALIBRATED: "degraded", TOLD: ""}
"""The report's class for each verdict."""


def page(made: Paper, emulated: Paper | None = None) -> str:
    """The whole HTML file, what was measured beside what was predicted; equal tables give equal pages."""
    environment = Environment(
        loader=PackageLoader("moefabric.paper", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("moefabric.report") / "page.css").read_text()
    return environment.get_template("page.html.j2").render(
        style=Markup(style),  # noqa: S704 - the report's own
        made=made,
        pills=PILLS,
        said=said,
        said_error=said_error,
        last=last,
        drawings=_drawings(made),
        emulated=emulated,
        measured={table.name: table for table in emulated.tables} if emulated else {},
        measured_drawings=_measured_drawings(emulated) if emulated else {},
        outside=OUTSIDE,
    )


def _drawings(made: Paper) -> dict[str, list[Markup]]:
    """The pictures of each table, by its name."""
    there = made.scene
    return {
        "iteration": list(figures.iterations(there)),
        "cost": [figures.costs()],
        "efficiency": list(figures.efficiencies(there)),
        "share": [figures.shares(made)],
        "delay": [figures.delays(there)],
        "degree": [figures.degrees(there)],
        "failures": [figures.broken(made)],
        "copilot": list(figures.guessed(there)),
        "past": list(figures.past(there)),
    }


def _measured_drawings(made: Paper) -> dict[str, list[Markup]]:
    """The same pictures of what was measured, of those tables that have rows."""
    there = made.scene
    drawn: dict[str, Callable[[], Iterable[Markup]]] = {
        "iteration": lambda: figures.iterations(there),
        "efficiency": lambda: figures.efficiencies(there),
        "share": lambda: [figures.shares(made)],
        "delay": lambda: [figures.delays(there)],
        "past": lambda: figures.past(there),
    }
    return {table.name: list(drawn[table.name]()) for table in made.tables if table.name in drawn}
