"""The page: the paper's tables and figures as predicted, in one HTML file that needs nothing else."""

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moefabric.paper import figures
from moefabric.paper.tables import CALIBRATED, OUTSIDE, TOLD, WITHIN, Paper
from moefabric.paper.text import said

PILLS = {WITHIN: "pass", OUTSIDE: "invalid", CALIBRATED: "degraded", TOLD: ""}
"""The report's class for each verdict."""


def page(made: Paper) -> str:
    """The whole HTML file; equal tables give equal pages."""
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
        drawings=_drawings(made),
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
