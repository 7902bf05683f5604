"""Stored results: a run's JSON without its rows, small enough for a repository.

A stored result is read as any run's JSON. It has the verdicts with their reasons, iterations, the
figures of tables, errors, circumstances and provenance; all-to-alls, flows, reconfigurations and
timelines are left out. It names no host and no folder of a user.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.report.summary import COLUMNS, FabricSummary, summaries
from moefabric.results.model import HostRecord, RunResult
from moefabric.results.parts import Json

LIMIT_BYTES: Final = 24_000
"""Largest stored result."""
_DIGITS: Final = 6
_ROWS: Final = (
    "collectives", "transfers", "flows", "reconfigurations", "timeline", "demand", "demand_label",
    "circuits",
)  # fmt: skip
_BARE: Final = ("fabric", "policy", "fidelity", "figures")
_LOCAL: Final = ("host", "hosts")
"""Entries of the manifest that name machines."""
_EMPTY: Final[Sequence[object]] = (None, "", [], {})
_FOLDER: Final = re.compile(r"(?<![\w.~-])~?/(?:[^\s/'\"]+/)+")
"""Folders of an absolute path in a text."""


@dataclass(frozen=True)
class _Detail:
    """Level of detail of a stored fabric.

    Attributes:
        quantiles: Whether distributions of errors keep all quantiles.
        iterations: Most iterations, and most losses of a program.
        reasons: Characters of all reasons of its verdict.
        bare: Whether nothing else but figures and verdict is kept.
    """

    quantiles: bool
    iterations: int
    reasons: int
    bare: bool = False


_DETAILS: Final = (
    _Detail(quantiles=True, iterations=100, reasons=4000),
    _Detail(quantiles=False, iterations=20, reasons=1500),
    _Detail(quantiles=False, iterations=3, reasons=300),
    _Detail(quantiles=False, iterations=0, reasons=80, bare=True),
)


def stored_text(run: RunResult) -> str:
    """Return a run as a stored result: JSON with a line for each fabric, at most `LIMIT_BYTES`.

    Equal runs give equal texts: keys are sorted, and numbers have six significant digits.

    Raises:
        SpecError: If the run is incomplete, has no provenance, or has too many fabrics.
    """
    if run.incomplete or not run.results:
        raise SpecError([("store", run.incomplete or "the run has no results")])
    if run.manifest.provenance is None:
        raise SpecError([("store", "the run has no provenance: run an experiment's file")])
    whole = run.to_json()
    manifest = {k: v for k, v in whole["manifest"].items() if k not in _LOCAL}
    head = {**whole, "manifest": manifest, "results": []}
    for detail in _DETAILS:
        fabrics = [_fabric(one, detail) for one in summaries(run)]
        text = stored_lines({**head, "results": fabrics}, _names(run.manifest.hosts or ()))
        if len(text.encode()) <= LIMIT_BYTES:
            return text
    message = f"{len(run.results)} fabrics don't fit {LIMIT_BYTES} bytes: store several runs"
    raise SpecError([("store", message)])


def _fabric(fabric: FabricSummary, detail: _Detail) -> Json:
    """Return the stored part of a fabric's result."""
    document = fabric.result.to_json()
    stored = {name: value for name, value in document.items() if name not in _ROWS}
    figures = {name: fabric[name] for name in COLUMNS}
    stored["figures"] = {n: float(value) for n, value in figures.items() if value is not None}
    stored["iterations"] = document.get("iterations", [])[: detail.iterations]
    stored["fidelity"] = _fidelity(document.get("fidelity", {}), detail)
    stored["wiring"] = _without(document.get("wiring", {}), "regions", "backups")
    if eps := stored["wiring"].get("eps"):
        stored["wiring"]["eps"] = _without(eps, "leaves", "spines")
    if training := document.get("training"):
        stored["training"] = _without(training, "tokens")
        stored["training"]["losses"] = training.get("losses", [])[-max(1, detail.iterations) :]
    if failures := document.get("failures"):
        stored["failures"] = [_without(failure, "lanes", "marks") for failure in failures[:20]]
    if queues := document.get("queues"):
        stored["queues"] = {**queues, "ports": queues["ports"][:3]}
    if detail.bare:
        stored = {name: stored[name] for name in _BARE if name in stored}
        stored["fidelity"] = {name: stored["fidelity"].get(name) for name in ("verdict", "reasons")}
    return stored


def _fidelity(document: Json, detail: _Detail) -> Json:
    errors = {
        kind: one if detail.quantiles else _without(one, "quantiles")
        for kind, one in document.get("completion_errors", {}).items()
    }
    reasons = _shortened(document.get("reasons", []), detail.reasons)
    stored = {**document, "completion_errors": errors, "reasons": reasons}
    return _without(stored, "findings")


def _shortened(reasons: Sequence[str], characters: int) -> list[str]:
    """Return the first reasons that fit, the first of them cut if need be, and how many follow."""
    texts = list[str]()
    for reason in reasons:
        room = characters - sum(map(len, texts))
        if len(reason) > room and texts:
            return [*texts, f"and {len(reasons) - len(texts)} more reasons"]
        texts.append(reason if len(reason) <= room else f"{reason[:room].rstrip()}...")
    return texts


def _without(document: Json, *names: str) -> Json:
    return {name: value for name, value in document.items() if name not in names}


def _names(hosts: Sequence[HostRecord]) -> dict[str, str]:
    """Return the servers' names by the names and addresses of their hosts."""
    return {name: host.server for host in hosts for name in (host.host, host.address) if name}


def _cleaned(value: Any, names: Mapping[str, str]) -> Any:
    """Return JSON without empty entries, with rounded numbers, and without folders and hosts."""
    match value:
        case dict():
            cleaned = {key: _cleaned(item, names) for key, item in value.items()}
            return {key: item for key, item in cleaned.items() if item not in _EMPTY}
        case list():
            return [_cleaned(item, names) for item in value]
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case str():
            text = _FOLDER.sub("", value)
            for host, server in names.items():
                text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", server, text)
            return text
    return value


def stored_lines(document: Json, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return JSON with a line for each entry, and for each object of a list of objects.

    Empty entries are left out, keys are sorted, numbers have six significant digits, and texts name
    no folder and no host.

    Args:
        document: The JSON.
        names: What stands for the names of hosts.
    """
    cleaned, lines = _cleaned(document, names), []
    for key in sorted(cleaned):
        value = cleaned[key]
        text = _compact(value)
        if isinstance(value, list) and all(isinstance(one, dict) for one in value):
            text = "[\n" + ",\n".join(map(_compact, value)) + "\n]"
        lines.append(f"{_compact(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


_compact: Final[Callable[[object], str]] = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":")
).encode
