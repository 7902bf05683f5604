"""The page: a run as one HTML file that needs nothing else, with its pictures drawn in and its JSON inside."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from moefabric.report import (
    bars,
    distribution,
    failures,
    first,
    heatmap,
    networks,
    phases,
    pipeline,
    reading,
    regions,
    ring,
    timeline,
    words,
)
from moefabric.report.result import PHASES, Result, baseline, overall
from moefabric.units import rate_text

_TOLD = ("kernel", "datapath", "crossbar", "transport", "seed", "started", "host")
"""What of the manifest comes first; the rest follows as it stands. The scale is said in words instead."""


@dataclass(frozen=True)
class Lit:
    """One fabric's demand beside the circuits lit for it."""

    result: Result
    demand: Markup
    circuits: Markup


def page(run: Mapping[str, Any]) -> str:
    """The whole HTML file. Text from the run is escaped; equal runs give equal pages."""
    results = reading.results(run)
    closer, layer = timeline.layer(results)
    broken, guessed = failures.failed(run), first.firsts(run)
    return _template().render(
        experiment=words.printable(run.get("experiment") or "run"),
        version=words.printable(run.get("version") or ""),
        verdict=overall(results),
        results=results,
        base=baseline(results),
        told=list(_told(run.get("manifest") or {}, results)),
        scale=_scale(results),
        wiring=_wiring(results),
        networks=networks.networks(results),
        pipelined=pipeline.picture(results),
        iteration=timeline.iteration([result for result in results if not pipeline.pipelined(result)]),
        hidden_servers=_hidden_servers(results),
        closer=closer,
        layer=layer,
        firsts=guessed,
        first_all_to_alls=first.picture(guessed),
        failed=broken,
        failed_iterations=failures.picture(broken),
        lit=_lit(results),
        region_errors=regions.errors(results),
        region_rings=[(result.name, drawn) for result in results if (drawn := regions.rings(result))],
        bars=bars.bars(results),
        priced=any(result.network_usd for result in results),
        unpriced=sorted({words.printable(result.unpriced) for result in results if result.unpriced}),
        distribution=distribution.distribution(results),
        phases=phases.phases(results),
        reconfiguration_phases=PHASES,
        json=_embedded(run),
        words=words,
        number=reading.number,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("moefabric.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _told(manifest: Mapping[str, Any], results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """What was run, as (name, value) pairs."""
    names = [name for name in _TOLD if name in manifest]
    names += [name for name in manifest if name not in _TOLD]
    if any(result.wiring for result in results):
        names = [name for name in names if name != "scale"]
    for name in names:
        yield words.printable(name).replace("_", " "), _value(manifest[name])


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{words.printable(key)} {_value(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(each) for each in value)
    return words.printable(words.NOTHING if value is None else value)


def _wiring(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Each fabric's servers and NICs in words."""
    said = []
    for result in results:
        count = {key: int(reading.number(result.wiring.get(key)) or 0) for key in _COUNTED}
        if not count["servers"]:
            continue
        servers = words.counted(count["servers"], "server")
        gpus = f" of {words.counted(count['gpus_per_server'], 'GPU')}" if count["gpus_per_server"] else ""
        if result.regions:
            servers = f"{words.counted(len(result.regions), 'region')}, {servers}"
        rate = reading.number(result.wiring.get("nic_rate_bps"))
        of = f" of {rate_text(rate)}" if rate else ""
        nics = f"{count['optical_nics']} optical + {count['electrical_nics']} electrical NICs{of} each"
        if result.wiring.get("panel"):
            nics = f"{count['optical_nics']} patched NICs{of} each"
        kind = f", {words.printable(result.wiring['kind'])}" if result.wiring.get("kind") else ""
        said.append((words.printable(result.name), f"{servers}{gpus}, {nics}{kind}"))
    return said


_COUNTED = ("servers", "gpus_per_server", "optical_nics", "electrical_nics")


def _scale(results: Sequence[Result]) -> str:
    """How the emulation is scaled, in a sentence; empty where the run doesn't say."""
    for result in results:
        rate, emulated, scale, dilation = (
            reading.number(result.wiring.get(key))
            for key in ("nic_rate_bps", "emulated_nic_rate_bps", "bytes_scale", "dilation")
        )
        if not (rate and emulated and scale):
            continue
        bytes_ = f"bytes are divided by {scale:,g}" if scale != 1 else "bytes are as in the model"
        times = f"times are stretched {dilation:g}-fold" if dilation and dilation != 1 else "times are 1:1"
        return (
            f"A NIC of {rate_text(rate)} is emulated at {rate_text(emulated)}: {bytes_}, {times}. "
            "Everything below is told in the model's own units."
        )
    return ""


def _hidden_servers(results: Sequence[Result]) -> int:
    if any(result.regions for result in results):
        return 0
    most = max((len({interval.server for interval in result.timeline}) for result in results), default=0)
    return max(0, most - timeline.MOST_SERVERS)


def _lit(results: Sequence[Result]) -> list[Lit]:
    """Demand and circuits of every fabric that says either, the heat of all on one scale."""
    shown = [regions.first(result) for result in results if result.demand or result.circuits]
    owed = [
        cell
        for result in shown
        for i, row in enumerate(result.demand)
        for j, cell in enumerate(row)
        if i != j
    ]
    largest = max(owed, default=0.0)
    return [Lit(result, heatmap.heatmap(result, largest), ring.ring(result)) for result in shown]


def _embedded(run: Mapping[str, Any]) -> Markup:
    """The run's JSON, written so that nothing in it can end the script element that holds it."""
    text = json.dumps(run, ensure_ascii=True, separators=(",", ":"), default=str)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 - the three signs that HTML knows are written as JSON escapes
