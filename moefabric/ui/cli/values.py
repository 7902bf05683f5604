"""Values that a shell completes: names of fabrics, their parts, policies, models, and keys.

There are none where the names are unknown, for example while no fabric runs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import click
from click.shell_completion import CompletionItem

from moefabric.api.running_fabrics import neither, running_fabric, running_fabrics
from moefabric.config.plugins import POLICIES, plugin_names
from moefabric.core.errors import MoefabricError
from moefabric.core.topology import Fabric
from moefabric.runtime.run_directory import FabricWiring, RunDirectory


def _fabric(context: click.Context) -> Fabric:
    """Return the running fabric that the words before mean."""
    return _wired(running_fabric(context.params.get("name")))


def _wired(name: str) -> Fabric:
    return FabricWiring.from_json(RunDirectory.of_fabric(name).wiring_file.read_bytes()).fabric


def fault_of_part(word: str) -> str:
    """Return why a word is no part of any running fabric; empty if it may be one.

    NICs, GPUs, links and circuits, which are written otherwise than fabrics, are not looked up.
    """
    names = [] if {*word} & {*"/~"} else running_fabrics()
    parts = dict[str, None]()
    try:
        for fabric in map(_wired, names):
            parts |= dict.fromkeys([*fabric.servers, *fabric.leaves, *fabric.spines])
            parts |= dict.fromkeys(ocs.name for ocs in fabric.ocses.values())
            parts |= dict.fromkeys(region.name for region in fabric.regions)
    except (MoefabricError, OSError):  # a fabric comes up or ends
        return ""
    parts |= dict.fromkeys(["management", "eps"])
    return neither(word, [*parts]) if names and word not in parts else ""


def _nodes(context: click.Context, *, servers: bool) -> list[str]:
    """Return OCSes, and servers; before them the fabrics, one of which may be the first word."""
    names = [] if context.params.get("name") else running_fabrics()
    with suppress(MoefabricError, OSError):
        fabric = _fabric(context)
        names += fabric.servers if servers else ()
        names += (ocs.name for ocs in fabric.ocses.values())
    return names


def _nics(context: click.Context, _incomplete: str) -> list[str]:
    fabric = _fabric(context)
    return [str(nic) for server in fabric.servers for nic in fabric.nics(server)]


def _places(context: click.Context, incomplete: str) -> list[str]:
    """Return the places of captures: all that has frames."""
    fabric = _fabric(context)
    switches = [*fabric.leaves, *fabric.spines]
    nodes, nics = _nodes(context, servers=True), _nics(context, incomplete)
    names = [*nodes, *nics, *switches, "management"]
    return names + (_circuits(context, incomplete) if "~" in incomplete else [])


def _circuits(context: click.Context, incomplete: str) -> list[str]:
    """Return pairs of servers, or of NICs once a NIC is typed."""
    fabric = _fabric(context)
    by_nic, (source, _, _) = "/" in incomplete, incomplete.partition("~")
    return [
        f"{a}~{b}"
        for region in fabric.ocses
        for a in _ends(fabric, region.servers, by_nic=by_nic)
        if "~" not in incomplete or a == source
        for b in _ends(fabric, region.servers, by_nic=by_nic)
        if a.partition("/")[0] != b.partition("/")[0]
    ]


def _ends(fabric: Fabric, servers: Iterable[str], *, by_nic: bool) -> list[str]:
    if not by_nic:
        return list(servers)
    return [str(nic) for server in servers for nic in fabric.optical_nics(server)]


def _models(_context: click.Context, _incomplete: str) -> list[str]:
    from moefabric.config.model import presets

    return list(presets())


def _keys(context: click.Context, _incomplete: str) -> list[str]:
    from moefabric.api.key_reference import KINDS, KeyReference

    kinds = [context.params["kind"]] if context.params.get("kind") else KINDS[:2]
    return [key.place for kind in kinds for key in KeyReference.of_kind(kind).all()]


def _settings(context: click.Context, incomplete: str) -> Iterator[str]:
    """Yield the keys of the command's file as `--set` has them: with positions in lists, and `=`.

    Keys behind names that the file chooses are left out.
    """
    from moefabric.api.key_reference import KeyReference

    typed, sections = re.sub(r"\[\d+\]", "[0]", incomplete), {"": ""}
    for key in KeyReference.of_kind(_KINDS.get(context.command.name or "", "fabric")).all():
        around, _, name = key.place.rpartition(".")
        if around in sections:
            place = sections[around] + name
            if f"{place}=".startswith(typed):
                yield f"{incomplete}{place[len(typed) :]}="
            if "mapping of names" not in key.type:
                sections[key.place] = place + ("[0]." if "list of mapping" in key.type else ".")


_KINDS: Final = {
    "run": "experiment",
    "train": "experiment",
    "predict": "experiment",
    "sweep": "sweep",
}
"""Kinds of the files of commands; all others take fabrics."""
_NAMES: Final[Mapping[str, Callable[[click.Context, str], Iterable[str]]]] = {
    "fabrics": lambda _context, _incomplete: running_fabrics(),
    "servers": lambda context, _incomplete: _nodes(context, servers=True),
    "ocses": lambda context, _incomplete: _nodes(context, servers=False),
    "nics": _nics,
    "places": _places,
    "circuits": _circuits,
    "policies": lambda _context, _incomplete: plugin_names(POLICIES),
    "models": _models,
    "keys": _keys,
    "settings": _settings,
}
"""Names by their kind, given the context and what is typed."""


def completions(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the names of a kind that may stand for the last word, of which a part is typed."""
    with suppress(MoefabricError, OSError, ValueError):
        names = _NAMES[kind](context, incomplete)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return []
