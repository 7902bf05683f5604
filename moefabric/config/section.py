"""Base classes and field types of the sections of a YAML file.

A file is checked in two passes. The first validates each value by its type and bounds. The second
compares values with each other (`Document.errors`); in that pass a wrong or missing value is
unknown, and checks that need the value are skipped, so that one mistake is reported once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from math import inf, isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict

from moefabric.core import units

InputError = tuple[str, str]
"""An error of a user's file: its place, and what is wrong there."""

PARTIAL: Final = object()
"""Validation context in which a wrong value becomes an unknown one instead of an error."""
_UNKNOWN: Final = object()


def _parsed(
    parse: Callable[[Any], float],
    example: str,
    above: float,
    refusal: str,
    *,
    most: tuple[float, str] = (inf, ""),
    bare: Callable[[float], str] | None = None,
    finite: bool = True,
) -> BeforeValidator:
    """Return a validator that parses a quantity.

    Args:
        parse: Returns the number that a text or a number stands for.
        example: What is needed, for errors.
        above: The number must be greater.
        refusal: What a number is that isn't.
        most: The greatest number, and the range as text.
        bare: Returns what is wrong with a number that has no unit, but for 0; None if it may.
        finite: Whether infinity is refused as no quantity at all.
    """

    def validate(value: object) -> float:
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if not is_plain or (finite and isinstance(value, float) and not isfinite(value)):
            raise ValueError(f"{value!r} is not {example}")
        number = parse(value)
        if not above < number < inf:
            raise ValueError(f"{value!r} is {refusal}")
        if number > most[0]:
            raise ValueError(f"{value!r} is not within {most[1]}")
        if bare is not None and isinstance(value, int | float) and value:
            raise ValueError(bare(value))
        return number

    return BeforeValidator(validate)


def _quantity_schema(pattern: str, example: str, *numbers: JsonDict) -> WithJsonSchema:
    """Return the schema of a quantity: text with a unit, or one of the given numbers without."""
    number = r"^\s*\+?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?\s*"
    text = {"type": "string", "pattern": f"{number}{pattern}\\s*$", "examples": [example]}
    return WithJsonSchema({"anyOf": [text, *numbers]} if numbers else text)


Rate = Annotated[
    float,
    _parsed(
        units.rate_bps,
        "a rate such as 100Gb/s",
        0,
        "not a rate above zero",
        bare=units.bare_rate,
        finite=False,
    ),
    _quantity_schema("[kmgtKMGT]?(b/s|bps|bit|bit/s)", "100Gb/s"),
]
"""Bits per second, written as `100Gb/s`."""
DurationNs = Annotated[
    int,
    _parsed(
        units.duration_ns,
        "a duration such as 25ms",
        -1,
        "negative",
        most=(units.LONGEST_NS, units.DURATIONS),
        bare=units.bare_duration,
    ),
    _quantity_schema("(ns|us|µs|μs|ms|s|min)", "25ms", {"const": 0}),
]
"""Nanoseconds of at most a day, written as `25ms`."""
ByteSize = Annotated[
    int,
    _parsed(units.size_bytes, "a size such as 2GB", 0, "not a size above zero"),
    _quantity_schema(
        "(B|[kMGT]i?B)?",
        "2GB",
        {"type": "number", "minimum": 0, "description": "A bare number is in bytes."},
    ),
]
"""Bytes, written as `2GB` or `512MiB`."""


def quantity_field(default: str) -> Any:
    """Return a field whose default is a rate or duration as users write it: `10s`."""
    return Field(default=default)


def _queue(value: object) -> units.QueueLimit:
    if not isinstance(value, str):
        example = "a quantity such as 100 packets or 400 kB"
        raise ValueError(f"{value!r} is not {example}")  # noqa: TRY004 - pydantic needs it
    return units.queue_limit(value)


QueueSize = Annotated[
    units.QueueLimit,
    BeforeValidator(_queue),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*\+?[0-9]+(\.[0-9]+)?\s*(packets?|bytes|[kM]?B)\s*$",
            "examples": ["100 packets", "400 kB"],
        }
    ),
]
"""Room of a queue, written as `100 packets` or `400 kB`."""


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
"""Lower-case letters, digits and dashes: names become those of namespaces, directories and
links."""
Text = Annotated[str, StringConstraints(min_length=1)]
"""Text that is not empty."""


class UnknownError(AttributeError):
    """A check needs a value that is missing or wrong. The first pass has reported the value."""


def collect_errors(*checks: Callable[[], Iterator[InputError]]) -> Iterator[InputError]:
    """Yield the errors that checks find. A check ends at the first unknown value that it needs."""
    for check in checks:
        with suppress(UnknownError):
            yield from check()


class KnownKeys:
    """Validation context of the first pass, which learns what unknown keys could be."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def add(self, keys: Iterable[Any], known: Collection[str]) -> None:
        """Note the unknown ones of a section's keys, given all keys that it can have."""
        for key in keys:
            if key not in known:
                self._known.setdefault(str(key), set()).update(known)

    def of(self, key: str) -> list[str]:
        """Return the keys of the sections in which this one is unknown."""
        return sorted(self._known.get(key, ()))


class Section(BaseModel):
    """Mapping of known keys. Unknown keys are errors, and types are not converted."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_partial(cls, value: Any, info: ValidationInfo) -> Any:
        """In the second pass, leave out unknown keys and mark missing values as unknown.

        In the first, tell the context which keys each unknown one could be.
        """
        if not isinstance(value, dict):
            return value
        if isinstance(info.context, KnownKeys):
            info.context.add(value, cls.model_fields)
        if info.context is not PARTIAL:
            return value
        names = {
            name for name, field in cls.model_fields.items() if name in value or field.is_required()
        }
        return {name: value.get(name, _UNKNOWN) for name in names}

    @field_validator("*", mode="wrap")
    @classmethod
    def _allow_unknown(cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        """In the second pass, turn a wrong value into an unknown one."""
        if value is _UNKNOWN:
            return value
        try:
            return handler(value)
        except ValidationError:
            if info.context is PARTIAL:
                return _UNKNOWN
            raise

    @model_validator(mode="after")
    def _remove_unknown(self) -> Self:
        for name in [name for name, value in self.__dict__.items() if value is _UNKNOWN]:
            del self.__dict__[name]
        return self

    if not TYPE_CHECKING:  # with it, mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise UnknownError for a value that is missing or wrong."""
            if name in type(self).model_fields:
                raise UnknownError(name)
            return super().__getattr__(name)


class Document(Section, ABC):
    """Outermost section of a file."""

    @abstractmethod
    def errors(self) -> Iterator[InputError]:
        """Yield the contradictions between values that are valid by themselves."""
