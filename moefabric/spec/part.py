"""A part of a spec: a mapping of known keys, checked key by key, and then as a whole as far as its values are right."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

Fault = tuple[str, str]
"""A place in the user's file, and what is wrong there."""

PARTIAL: Final = object()
"""Validation context under which a wrong value becomes an unknown one instead of an error."""
_UNKNOWN: Final = object()


class UnknownError(AttributeError):
    """A check asked for a value that is missing or wrong; that is told already."""


def known(*checks: Iterator[Fault]) -> Iterator[Fault]:
    """What these checks find. One that asks for an unknown value ends there: a fault never brings another with it."""
    for check in checks:
        with suppress(UnknownError):
            yield from check


class Part(BaseModel):
    """Unknown keys are faults, types are not converted, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any, said: ValidationInfo) -> Any:
        """Partially: unknown keys are left out, missing ones are unknown values."""
        if said.context is not PARTIAL or not isinstance(value, dict):
            return value
        wanted = {name for name, field in cls.model_fields.items() if name in value or field.is_required()}
        return {name: value.get(name, _UNKNOWN) for name in wanted}

    @field_validator("*", mode="wrap")
    @classmethod
    def _forgive(cls, value: Any, checked: Callable[[Any], Any], said: ValidationInfo) -> Any:
        """Partially: a wrong value is an unknown one."""
        if value is _UNKNOWN:
            return value
        try:
            return checked(value)
        except ValidationError:
            if said.context is PARTIAL:
                return _UNKNOWN
            raise

    @model_validator(mode="after")
    def _forget(self) -> Self:
        for name in [name for name, value in self.__dict__.items() if value is _UNKNOWN]:
            del self.__dict__[name]
        return self

    if not TYPE_CHECKING:  # with it, mypy would let any attribute pass

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise UnknownError(name)
            return super().__getattr__(name)


class Whole(Part, ABC):
    """A file's outermost part."""

    @abstractmethod
    def faults(self) -> Iterator[Fault]:
        """What single values can't tell, as far as they are known."""
