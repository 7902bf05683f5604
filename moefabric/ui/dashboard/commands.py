"""Commands of the page: JSON in, a change of light or failures, JSON out."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from moefabric.core.errors import SpecError
from moefabric.ui.dashboard.fabric_source import FabricSource

Document = Mapping[str, Any]
Command = Callable[[FabricSource, Document], object]


def _text(document: Document, key: str) -> str | None:
    value = document.get(key)
    if value is None or isinstance(value, str):
        return value
    raise SpecError([(key, "text is needed")])


def _texts(document: Document, key: str) -> list[str]:
    value = document.get(key, [])
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise SpecError([(key, "a list of names is needed")])


def _light(source: FabricSource, document: Document) -> object:
    circuits = _texts(document, "circuits")
    if not circuits:
        raise SpecError([("circuits", "name circuits such as s0/o0~s1/o0 or s0~s1")])
    return source.light(circuits, _text(document, "region"))


def _dark(source: FabricSource, document: Document) -> object:
    return source.dark(_texts(document, "circuits"), _text(document, "region"))


def _fault(source: FabricSource, document: Document) -> object:
    return source.fault(_text(document, "kind") or "", _texts(document, "what"))


def _clear(source: FabricSource, document: Document) -> object:
    return source.clear(_text(document, "kind"), _texts(document, "what"))


COMMANDS: Final[Mapping[str, Command]] = {
    "light": _light,
    "dark": _dark,
    "fault": _fault,
    "clear": _clear,
}
"""Commands by name. `light` sets the circuits of a region, `dark` removes circuits, `fault` makes
components fail, and `clear` clears failures."""
