"""Points of a sweep: one combination of the values that it changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Value = str | int | float | bool
"""A value of an axis, as tables and pictures have it."""
VARIANT: Final = "variant"
"""Name of the axis of variants."""


@dataclass(frozen=True)
class Point:
    """A combination of values.

    Attributes:
        number: Its position in the sweep, from 0.
        values: Its value on each axis.
        changes: Values by their places in the experiment.
    """

    number: int
    values: Mapping[str, Value]
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{axis}={value}" for axis, value in self.values.items()) or "no change"


def value_label(value: Any) -> Value:
    """Return a value as tables have it: a mapping is its `name`, or JSON like other structures."""
    if isinstance(value, Value):
        return value
    if isinstance(value, Mapping) and isinstance(name := value.get("name"), str):
        return name
    return json.dumps(value, ensure_ascii=False, default=str)
