"""Words: what pydantic finds wrong with a value, as a person would say it."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

_UNKNOWN_KEY: Final = "is not a key here"
_SAID: Final = {
    "extra_forbidden": _UNKNOWN_KEY,
    "invalid_key": _UNKNOWN_KEY,
    "missing": "is missing",
}
_WANTED: Final = {
    "bool_type": "true or false is needed",
    "finite_number": "a finite number is needed",
    "float_type": "a number is needed",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_type": "a whole number is needed",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "a list is needed",
    "literal_error": "{expected} is needed",
    "model_type": "a mapping of keys is needed",
    "path_type": "text is needed",
    "string_pattern_mismatch": "a lower-case letter and up to 30 lower-case letters, digits and dashes are needed",
    "string_too_short": "text is needed",
    "string_type": "text is needed",
    "too_long": "at most {max_length} are possible",
    "too_short": "at least {min_length} is needed",
}


def words(error: ErrorDetails) -> str:
    """What is wrong with the value, and what was given instead."""
    kind = error["type"]
    if kind in _SAID:
        return _SAID[kind]
    if kind in _WANTED:
        return f"{_WANTED[kind].format(**error.get('ctx', {}))}, {_given(error['input'])} given"
    return error["msg"].removeprefix("Value error, ")


def _given(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value in (None, "", []):
        return "nothing"
    if isinstance(value, Mapping | list):
        return f"a {'list of ' + str(len(value)) if isinstance(value, list) else 'mapping'}"
    return (
        f"{value:g}"
        if isinstance(value, float)
        else repr(value if isinstance(value, str | int) else str(value))
    )
