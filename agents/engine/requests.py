"""Requests, the checks of their fields, and the error for a refused request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_MISSING = object()


class RefusedError(Exception):
    """A request can't be executed; the reply contains this error's text."""


def os_error_text(error: OSError) -> str:
    """Return the text of a system error without its number."""
    return error.strerror or str(error)


class Fields:
    """A JSON object in a request. The methods raise RefusedError if the field is wrong.

    Attributes:
        place: Prefix of the field's name in errors; empty for the request itself.
    """

    def __init__(self, values: dict[str, Any], place: str = "") -> None:
        self.values, self.place = values, place

    def text(self, name: str, default: Any = _MISSING) -> str:
        """Return a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise RefusedError(f"{self.place}{name}: {value!r} is not a text")
        return value

    def integer(self, name: str, least: int, most: int, default: Any = _MISSING) -> int:
        """Return an integer within bounds."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bounds = f"from {least} to {most}"
            raise RefusedError(f"{self.place}{name}: {value!r} is not a whole number {bounds}")
        return value

    def number(self, name: str) -> float:
        """Return a number that is not negative."""
        value = self._value(name, _MISSING)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e18:
            raise RefusedError(f"{self.place}{name}: {value!r} is not a number from 0")
        return float(value)

    def rate(self) -> float | None:
        """Return `rate_bps`, a transfer's rate in bits per second; None for unlimited."""
        value = self.values.get("rate_bps")
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise RefusedError(f"{self.place}rate_bps: {value!r} is not a rate")
        return float(value)

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects; a missing field is an empty list."""
        values = self._list(name, "objects", lambda item: isinstance(item, dict), [])
        return [Fields(item, f"{self.place}{name}[{i}].") for i, item in enumerate(values)]

    def item(self, name: str) -> Fields:
        """Return an object."""
        value = self._value(name, _MISSING)
        if not isinstance(value, dict):
            raise RefusedError(f"{self.place}{name}: an object is needed")
        return Fields(value, f"{self.place}{name}.")

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        return self._list(name, "texts", lambda item: isinstance(item, str))

    def integers(self, name: str, default: Any = _MISSING) -> list[int]:
        """Return a list of whole numbers that are not negative."""
        return self._list(name, "whole numbers", _is_count, default)

    def integer_pairs(self, name: str) -> list[tuple[int, int]]:
        """Return a list of pairs of whole numbers; a missing field is an empty list."""
        pairs = self._list(name, "pairs of whole numbers", _is_pair, [])
        return [(first, second) for first, second in pairs]

    def _list(
        self, name: str, what: str, fits: Callable[[Any], bool], default: Any = _MISSING
    ) -> list[Any]:
        value = self._value(name, default)
        if not isinstance(value, list) or not all(map(fits, value)):
            raise RefusedError(f"{self.place}{name}: a list of {what} is needed")
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is _MISSING:
            raise RefusedError(f"{self.place}{name} is missing")
        return value


def _is_count(item: Any) -> bool:
    return type(item) is int and item >= 0


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and [type(number) for number in item] == [int, int]


def parse_request(line: bytes) -> Fields:
    """Return a line's JSON object; raise ValueError if it isn't JSON."""
    try:
        request = json.loads(line)
    except RecursionError as error:
        raise ValueError("its objects or lists are nested too deeply") from error
    if not isinstance(request, dict):
        raise RefusedError("a request is a JSON object")
    return Fields(request)
