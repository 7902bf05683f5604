"""HTML page of a run: one file with its charts and the run's JSON, which loads nothing else."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from moefabric.core.units import rate_text
from moefabric.report import (
    diagrams,
    findings,
    formatting,
    heat_maps,
    pictures,
    remarks,
    run_tables,
    svg,
    timelines,
)
from moefabric.report.chart import responsive
from moefabric.report.formatting import MISSING, counted, printable
from moefabric.report.outcome import outcome
from moefabric.report.summary import FabricSummary, overall_verdict, summaries
from moefabric.report.tables import html_table, verdict_pill
from moefabric.results.model import Manifest, RunResult, WiringSummary
from moefabric.results.statistics import MEANINGS


def page(run: RunResult) -> str:
    """Return the whole HTML file. Text of the run is escaped; equal runs give equal pages."""
    fabrics = summaries(run)
    return page_template("moefabric.report").render(
        run=run,
        verdict=overall_verdict(run),
        outcome=outcome(fabrics),
        meanings=MEANINGS,
        fabrics=fabrics,
        pictures=pictures.DRAWINGS,
        diagrams=diagrams,
        heat_maps=heat_maps,
        timelines=timelines,
        tables=run_tables,
        remarks=remarks,
        findings=findings,
        settings=list(_settings(run.manifest, fabrics)),
        scale=_scale(fabrics),
        wiring=[text for fabric in fabrics for text in _wiring(fabric)],
        json=_embedded(run),
    )


def tables_html(run: RunResult) -> str:
    """Return the result of a run in sentences and the tables of its page, for a notebook."""
    fabrics = summaries(run)
    tables = (
        run_tables.comparison(fabrics, wide=True),
        run_tables.costs(fabrics),
        run_tables.errors(fabrics),
    )
    shown = [html_table(table) for table in tables if table.rows]
    return str(Markup().join([svg.tag("p", outcome(fabrics)), *shown]))


@cache
def page_style() -> Markup:
    """Return the style of a page with its charts."""
    folder = files("moefabric.report")
    parts = ((folder / f"{name}.css").read_text() for name in ("colours", "charts", "page"))
    return Markup("".join(parts))  # noqa: S704 - the report's own files


@cache
def page_template(package: str) -> Template:
    """Return the page of a package, which knows style, tables, verdicts and formats of pages."""
    environment = Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        style=page_style(),
        html=html_table,
        responsive=responsive,
        pill=verdict_pill,
        fmt=formatting,
    )
    return environment.get_template("page.html.j2")


def _settings(manifest: Manifest, fabrics: Sequence[FabricSummary]) -> Iterator[tuple[str, str]]:
    """Return the manifest as (name, value) pairs, without what the page shows elsewhere."""
    elsewhere = {"hosts", "scale"} if _scale(fabrics) else {"hosts"}
    for name, value in manifest.to_json().items():
        if name not in elsewhere:
            yield printable(name).replace("_", " "), _value(value)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{printable(key)} {_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return MISSING if value is None else printable(value)


def _wiring(fabric: FabricSummary) -> Iterator[tuple[str, str]]:
    """Yield a fabric's name with its servers and NICs in words, and with its modelled parts."""
    wiring = fabric.result.wiring
    if not wiring.servers:
        return
    servers = counted(wiring.servers, "server")
    if wiring.gpus_per_server:
        servers += f" of {counted(wiring.gpus_per_server, 'GPU')}"
    if fabric.regions:
        servers = f"{counted(len(fabric.regions), 'region')}, {servers}"
    nics = f"{wiring.optical_nics} optical + {wiring.electrical_nics} electrical NICs"
    if wiring.panel:
        nics = f"{wiring.optical_nics} patch-panel NICs"
    rate = f" of {rate_text(wiring.nic_rate_bps)}" if wiring.nic_rate_bps else ""
    rates = ", ".join(f"{name} {rate_text(bps)}" for name, bps in wiring.own_nic_rates_bps.items())
    other = f" (NICs of {printable(rates)})" if rates else ""
    kind = f", {printable(wiring.kind)}" if wiring.kind else ""
    yield fabric.name, f"{servers}, {nics}{rate} each{other}{kind}"
    if fabric.result.hybrid is not None:
        yield fabric.name, remarks.hybrid_text(fabric.result.hybrid)


def _scale(fabrics: Sequence[FabricSummary]) -> str:
    """Describe the scales of the emulation in a sentence each; empty if the run tells none."""
    named = defaultdict[str, list[str]](list)
    for fabric in fabrics:
        if text := _scale_text(fabric.result.wiring):
            named[text].append(printable(fabric.name))
    if not named:
        return ""
    texts = list(named)
    if len(named) > 1:
        texts = [f"{', '.join(names)}: {text}" for text, names in named.items()]
    return f"{'. '.join(texts)}. All figures below are in the model's units."


def _scale_text(wiring: WiringSummary) -> str:
    """Describe the scale of a fabric; empty if its wiring doesn't tell it."""
    rate, emulated, scale = wiring.nic_rate_bps, wiring.emulated_nic_rate_bps, wiring.bytes_scale
    if not (rate and emulated and scale):
        return ""
    sizes = f"sizes are divided by {scale:,g}" if scale != 1 else "sizes are unscaled"
    stretched = wiring.dilation and wiring.dilation != 1
    times = f"times are multiplied by {wiring.dilation:g}" if stretched else "times are 1:1"
    return f"A NIC of {rate_text(rate)} is emulated at {rate_text(emulated)}: {sizes}, {times}"


def _embedded(run: RunResult) -> Markup:
    """Return the run's JSON in a form that can't end the script element around it."""
    text = json.dumps(run.to_json(), ensure_ascii=True, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 - the three signs that HTML knows are written as JSON escapes
