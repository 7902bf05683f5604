"""What a request asks for, field by field; a wrong one is refused with its place."""

from __future__ import annotations

import json
from typing import Any

from agents.engine.errors import RefusedError

MISSING = object()


def _asked(place: str, asked: dict[str, Any], field: str, default: Any) -> Any:
    value = asked.get(field, default)
    if value is MISSING:
        raise RefusedError(f"{place}{field} is missing")
    return value


def text(place: str, asked: dict[str, Any], field: str, default: Any = MISSING) -> str:
    """A string of a request."""
    value = _asked(place, asked, field, default)
    if not isinstance(value, str):
        raise RefusedError(f"{place}{field}: {value!r} is not a text")
    return value


def whole(
    place: str, asked: dict[str, Any], field: str, least: int, most: int, default: Any = MISSING
) -> int:
    """A whole number of a request, within bounds."""
    value = _asked(place, asked, field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RefusedError(f"{place}{field}: {value!r} is not a whole number from {least} to {most}")
    return value


def rate(place: str, asked: dict[str, Any]) -> float | None:
    """A transfer's rate in bits per second; None is as fast as it goes."""
    value = asked.get("rate_bps")
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise RefusedError(f"{place}rate_bps: {value!r} is not a rate")
    return float(value)


def parts(place: str, asked: dict[str, Any], field: str) -> list[tuple[str, dict[str, Any]]]:
    """A list of objects of a request, each with its place."""
    value = asked.get(field, [])
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise RefusedError(f"{place}{field}: a list of objects is needed")
    return [(f"{place}{field}[{i}].", part) for i, part in enumerate(value)]


def whole_object(line: bytes) -> dict[str, Any]:
    """A line as a JSON object. ValueError if it isn't JSON."""
    said = json.loads(line)
    if not isinstance(said, dict):
        raise RefusedError("a request is a JSON object")
    return said
