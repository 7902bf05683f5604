"""Sections of files whose values are data classes of the packages below.

The data class says the fields of the section, their types, defaults and bounds, and the docstring
below each field describes its key. A key has the name of its field without a unit: `boot_ns: int`
is the key `boot`, a duration that users write as `2s`.

Example:
    loss: Annotated[OpticalLoss, AsSection()] = Field(default_factory=OpticalLoss)
"""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import cache
from itertools import chain, pairwise
from textwrap import dedent
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, WithJsonSchema, create_model
from pydantic.config import JsonDict
from pydantic_core import CoreSchema
from pydantic_core.core_schema import (
    no_info_wrap_validator_function,
    plain_serializer_function_ser_schema,
)

from moefabric.config.section import ByteSize, DurationNs, Rate, Section, UnknownError
from moefabric.core.ocs import Spelling
from moefabric.core.units import duration_text, rate_text

S = TypeVar("S", bound=Section)
T = TypeVar("T")

_UNITS: Final[Mapping[str, Any]] = {"_ns": DurationNs, "_bytes": ByteSize, "_bps": Rate}
"""Types of values that users write with a unit, by the end of a field's name."""
_TEXTS: Final[Mapping[str, Callable[[float], str]]] = {"_ns": duration_text, "_bps": rate_text}
"""How defaults of such values are written."""


class _Incomplete:
    """Value of a data class in the second pass if a value of its section is wrong or missing."""

    def __getattr__(self, name: str) -> Any:
        """Raise UnknownError, which ends a check that needs the value."""
        raise UnknownError(name)


class AsSection:
    """Makes a data class the type of a key whose value is a mapping."""

    def __init__(self, **types: Any) -> None:
        """Prepare the section; the types are those of `with_fields_of`."""
        self.types = types

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        summary = (inspect.getdoc(source) or "").partition("\n\n")[0]
        names = {"__doc__": summary, "__module__": __name__}
        section: type[Section] = type(source.__name__, (Section,), names)
        section = with_fields_of(source, **self.types)(section)

        def value(given: Any, check: Callable[[Any], Any]) -> Any:
            if isinstance(given, source):
                return given
            try:
                return value_of(check(given), source)
            except UnknownError:
                return _Incomplete()

        def mapping(built: Any) -> Any:
            if not isinstance(built, source):
                return built
            keys = _keys(source, section)
            return {key: getattr(built, name) for name, key in keys.items()}

        return no_info_wrap_validator_function(
            value,
            handler.generate_schema(section),
            serialization=plain_serializer_function_ser_schema(mapping),
        )


def with_fields_of(
    kind: type[Any], /, leave_out: Collection[str] = (), *, optional: str = "", **types: Any
) -> Callable[[type[S]], type[S]]:
    """Return a decorator that adds the fields of a data class to a section.

    Args:
        kind: The data class.
        leave_out: Names of fields that are no keys.
        optional: What stands for a key that is left out, for descriptions; the section has None.
            If empty, keys have the defaults of the data class.
        **types: Types of fields in the file that differ from those of the data class; one that is
            `Required` has no default.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in leave_out:
            continue
        hint = types.get(field.name) or _written(hints[field.name], _UNITS.get(_unit(field.name)))
        default = _default(field)
        if optional:
            hint, default = hint | None, {"default": None}
        elif get_origin(hint) is Required:
            hint, default = get_args(hint)[0], {}
        describe = _describe(kind, field.name, f" Default: {optional}." if optional else "")
        fields[_key(field.name)] = hint, Field(**default, json_schema_extra=describe)

    def add(section: type[S]) -> type[S]:
        name, module, text = section.__name__, section.__module__, section.__doc__
        added: type[S] = create_model(
            name, __base__=section, __module__=module, __doc__=text, **fields
        )
        return added

    return add


def value_of(section: Section, kind: type[T], **more: Any) -> T:
    """Return the data class that a section describes.

    Args:
        section: A section with keys for fields of the class.
        kind: The data class.
        **more: Values of fields that have no key.

    Raises:
        UnknownError: If a value of the section is wrong or missing.
    """
    keys = _keys(kind, type(section))
    values = {name: getattr(section, key) for name, key in keys.items()}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return kind(**values | lists, **more)


def _keys(kind: type[Any], section: type[Section]) -> dict[str, str]:
    """Return the key of each field of a data class that has one in a section."""
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: _key(name) for name in names if _key(name) in section.model_fields}


def _unit(name: str) -> str:
    return next((unit for unit in _UNITS if name.endswith(unit)), "")


def _key(name: str) -> str:
    return name.removesuffix(_unit(name))


def _written(hint: Any, unit: Any) -> Any:
    """Return the type of a value as users write it, for the type that a field has."""
    written: Any
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = chain.from_iterable(map(_bounds, arguments[1:]))
        written = Annotated[(_written(arguments[0], unit), *bounds)]
    elif origin in {Union, UnionType}:
        written = Union[tuple(_written(one, unit) for one in arguments)]  # noqa: UP007 - run time
    elif origin is tuple:
        written = list[_written(arguments[0], None)]  # type: ignore[misc]  # at run time
    elif origin not in {None, Literal}:
        written = origin[tuple(_written(one, None) for one in arguments)]
    elif unit is not None and hint is not NoneType:
        written = unit
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        written = Annotated[hint, Field(strict=False)]
    else:
        written = Annotated[hint, AsSection()] if dataclasses.is_dataclass(hint) else hint
    return written


def _bounds(metadata: Any) -> tuple[Any, ...]:
    """Return the metadata that pydantic understands."""
    if not isinstance(metadata, Spelling):
        return (metadata,)

    def check(text: str) -> str:
        if not re.fullmatch(metadata.pattern, text):
            raise ValueError(f"{metadata.rule} is needed, {text!r} given")
        return text

    schema = WithJsonSchema({"type": "string", "pattern": f"^{metadata.pattern}$"})
    return AfterValidator(check), schema


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the default of a field as users write it."""
    value: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        return {"default_factory": field.default_factory}
    if isinstance(value, tuple):
        return {"default_factory": lambda: list(value)}
    if dataclasses.is_dataclass(value):
        return {"default_factory": lambda: value}
    if _unit(field.name) in _TEXTS and isinstance(value, int | float) and value:
        return {"default": _TEXTS[_unit(field.name)](value)}
    return {} if value is dataclasses.MISSING else {"default": value}


def _describe(kind: type[Any], name: str, more: str) -> Callable[[JsonDict], None]:
    """Return a function that adds the description of a field to a JSON Schema."""

    def add(schema: JsonDict) -> None:
        if text := descriptions(kind).get(name, "").partition("\n\n")[0]:
            schema["description"] = text + more

    return add


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a class, its bases' included."""
    return dict(chain.from_iterable(_own_descriptions(one).items() for one in kind.__mro__[::-1]))


@cache
def _own_descriptions(kind: type[Any]) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # built in, or built at run time
        return {}
    body = ast.parse(dedent(source)).body[0].body  # type: ignore[attr-defined]  # it is a class
    texts = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts
