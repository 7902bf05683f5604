"""From a file to a spec: every fault at once, each with its place, in the order of the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from moefabric.errors import SpecError
from moefabric.spec.part import PARTIAL, Fault, Whole
from moefabric.spec.words import words
from moefabric.spec.written import Step, steps, written

if TYPE_CHECKING:
    from moefabric.spec.experiment import ExperimentSpec
    from moefabric.spec.fabric import FabricSpec

S = TypeVar("S", bound=Whole)


def fabric(path: Path, settings: Sequence[str] = ()) -> "FabricSpec":
    """The fabric that a file describes, with `key=value` settings applied. SpecError with all of its faults."""
    from moefabric.spec.fabric import FabricSpec

    raw = written(path, settings)
    if "experiment" in raw and "fabric" not in raw:
        raise SpecError(
            [(str(path), "describes an experiment, which `moefabric run` takes; a fabric is needed")]
        )
    return _checked(FabricSpec, raw, path)


def experiment(path: Path, settings: Sequence[str] = ()) -> "ExperimentSpec":
    """The experiment that a file describes, with `key=value` settings applied. SpecError with all of its faults."""
    from moefabric.spec.experiment import ExperimentSpec

    raw = written(path, settings)
    if "fabric" in raw and "experiment" not in raw:
        raise SpecError(
            [(str(path), "describes a fabric, which `moefabric up` takes; an experiment is needed")]
        )
    return _checked(ExperimentSpec, raw, path)


def _checked(kind: type[S], raw: dict[str, Any], path: Path) -> S:
    """The spec. Where values are wrong, the others are still held against each other."""
    faults: list[Fault] = []
    try:
        spec = kind.model_validate(raw)
    except ValidationError as said:
        faults = [(_place(error["loc"], raw), words(error)) for error in said.errors()]
        spec = kind.model_validate(raw, context=PARTIAL)
    faults += spec.faults()
    if faults:
        told = sorted(dict.fromkeys(faults), key=lambda fault: _position(fault[0], raw))
        raise SpecError([(f"{path}: {place}", what) for place, what in told])
    return spec


def _place(loc: tuple[Step, ...], raw: Any) -> str:
    """A pydantic location as the user would write it, without the names of a union's branches."""
    text, here = "", raw
    for step in loc:
        if isinstance(here, list):
            text += f"[{step}]"
        elif isinstance(here, dict) and (step in here or step == loc[-1]):
            text += f".{step}" if text else str(step)
        else:
            continue
        here = _at(here, step)
    return text


def _at(here: Any, step: Step) -> Any:
    if isinstance(here, dict):
        return here.get(step)
    return here[step] if isinstance(here, list) and isinstance(step, int) and step < len(here) else None


def _position(place: str, raw: Any) -> tuple[int, ...]:
    """Where a place is in the file, to sort by; what is missing comes after what is there."""
    position, here = [], raw
    for step in steps(place):
        keys = list(here) if isinstance(here, dict) else []
        position.append(step if isinstance(step, int) else keys.index(step) if step in keys else len(keys))
        here = _at(here, step)
    return tuple(position)
