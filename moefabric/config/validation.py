"""Validates documents: finds every error at once, each with its place, in the order of the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from moefabric.config.input_file import PathStep, did_you_mean, not_modelled, path_steps
from moefabric.config.section import PARTIAL, Document, InputError, KnownKeys, Section
from moefabric.core.errors import SpecError

S = TypeVar("S", bound=Section)

_KEY_ERRORS: Final = {"extra_forbidden", "invalid_key", "missing"}
"""Errors of keys, whose values matter nothing."""
_MESSAGES: Final = {
    "bool_type": "true or false is needed",
    "dict_type": "a mapping of keys is needed",
    "enum": "{expected} is needed",
    "extra_forbidden": "is not a key here",
    "finite_number": "a finite number is needed",
    "float_type": "a number is needed",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_type": "a whole number is needed",
    "invalid_key": "is not a key here",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "a list is needed",
    "literal_error": "{expected} is needed",
    "missing": "is missing",
    "model_type": "a mapping of keys is needed",
    "path_type": "text is needed",
    "string_pattern_mismatch": (
        "a lower-case letter and up to 30 lower-case letters, digits and dashes are needed"
    ),
    "string_too_short": "text is needed",
    "string_type": "text is needed",
    "too_long": "at most {max_length} are possible",
    "too_short": "at least {min_length} is needed",
}


def validate(kind: type[S], document: dict[str, Any], path: Path | None = None) -> S:
    """Return a document as a section of this kind, after the checks of its values and of the whole.

    Args:
        kind: Class of the section.
        document: Contents of the file.
        path: The file, to be named in messages.

    Raises:
        SpecError: With all errors.
    """
    errors: list[InputError] = []
    known = KnownKeys()
    try:
        section = kind.model_validate(document, context=known)
    except ValidationError as error:
        errors += [
            (_place(details["loc"], document), error_message(details) + _alike(details, known))
            for details in error.errors()
        ]
        section = kind.model_validate(document, context=PARTIAL)
    if isinstance(section, Document):
        errors += section.errors()
    if errors:
        prefix = f"{path}: " if path else ""
        ordered = sorted(dict.fromkeys(errors), key=lambda error: _position(error[0], document))
        raise SpecError([(f"{prefix}{place}", message) for place, message in ordered])
    return section


def error_message(error: ErrorDetails) -> str:
    """Return what is wrong with a value, and what was given instead."""
    if error["type"] not in _MESSAGES:
        return error["msg"].removeprefix("Value error, ")
    message = _MESSAGES[error["type"]].format(**error.get("ctx", {}))
    is_of_key = error["type"] in _KEY_ERRORS
    return message if is_of_key else f"{message}, {_value_text(error['input'])} given"


def _alike(error: ErrorDetails, known: KnownKeys) -> str:
    """Return the keys that an unknown one resembles, or else all, as the end of a message."""
    if error["type"] != "extra_forbidden":
        return ""
    key = str(error["loc"][-1])
    there = known.of(key)
    listed = f"; keys are: {', '.join(there)}" if there else ""
    return not_modelled(key) or did_you_mean(key, there) or listed


def _value_text(value: Any) -> str:
    match value:
        case bool():
            text = str(value).lower()
        case None | "" | []:
            text = "nothing"
        case list():
            text = f"a list of {len(value)}"
        case Mapping():
            text = "a mapping"
        case float():
            text = f"{value:g}"
        case _:
            text = repr(value if isinstance(value, str | int) else str(value))
    return text


def _place(location: tuple[PathStep, ...], document: Any) -> str:
    """Return a pydantic location as the user writes it, without names of union branches."""
    text, parent = "", document
    for step in location:
        if isinstance(parent, list):
            text += f"[{step}]"
        elif isinstance(parent, dict) and (step in parent or step == location[-1]):
            text += f".{step}" if text else str(step)
        else:
            continue
        parent = _child(parent, step)
    return text


def _child(parent: Any, step: PathStep) -> Any:
    if isinstance(parent, dict):
        return parent.get(step)
    is_entry = isinstance(parent, list) and isinstance(step, int) and step < len(parent)
    return parent[step] if is_entry else None


def _position(place: str, document: Any) -> tuple[int, ...]:
    """Return the sort key of a place by its position in the file. Missing keys come last."""
    position, parent = [], document
    for step in path_steps(place):
        keys = list(parent) if isinstance(parent, dict) else []
        position.append(
            step if isinstance(step, int) else keys.index(step) if step in keys else len(keys)
        )
        parent = _child(parent, step)
    return tuple(position)
