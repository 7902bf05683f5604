"""What the user wrote: a YAML file as plain values, with `key=value` settings put in."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from moefabric.errors import SpecError
from moefabric.spec.part import Fault

Step = int | str
"""A key of a mapping or a position in a list."""

_STEP: Final = re.compile(r"\[(?P<position>[0-9]+)\]|(?:^|\.)(?P<key>[^.\[\]]+)")


class _Loader(yaml.SafeLoader):
    """YAML 1.1, in which 1e9 is a number too and a key is given once."""

    def construct_mapping(self, node: yaml.MappingNode, *given: Any, **named: Any) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice", key.start_mark
                )
            keys.add(key.value)
        return super().construct_mapping(node, *given, **named)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def written(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """The mapping in a file, with `a.b[0].c=value` settings applied. SpecError where it can't be read or a setting has no place."""
    try:
        raw = _parsed(path.read_text())
    except OSError as fault:
        raise SpecError([(str(path), fault.strerror or str(fault))]) from fault
    except UnicodeDecodeError as fault:
        raise SpecError([(str(path), f"not text in UTF-8: byte {fault.object[fault.start]:#04x}")]) from fault
    except (yaml.YAMLError, ValueError) as wrong:
        mark = getattr(wrong, "problem_mark", None)
        raise SpecError([(f"{path}:{mark.line + 1}" if mark else str(path), _why(wrong))]) from wrong
    if raw is None:
        raise SpecError([(str(path), "is empty")])
    if not isinstance(raw, dict):
        raise SpecError([(str(path), "a mapping of keys is needed")])
    if faults := [said for setting in settings if (said := _apply(raw, setting))]:
        raise SpecError(faults)
    return raw


def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def _why(wrong: Exception) -> str:
    problem = getattr(wrong, "problem", None) or str(wrong).splitlines()[0]
    return f"not YAML: {problem}"


def steps(place: str) -> list[Step]:
    """The keys and positions that lead to `a.b[0].c`; empty where it isn't a place."""
    made: list[Step] = []
    end = 0
    for match in _STEP.finditer(place):
        if match.start() != end:
            return []
        end = match.end()
        made.append(match["key"] or int(match["position"]))
    return made if end == len(place) else []


def _apply(raw: dict[str, Any], setting: str) -> Fault | None:
    """Put the value into the mapping. A fault where the setting names no place."""
    place, equals, value = setting.partition("=")
    way = steps(place)
    if not equals or not place:
        return f"--set {setting}", "is not key=value"
    if not way:
        return f"--set {setting}", f"there is no place {place}"
    here: Any = raw
    try:
        for step in way[:-1]:
            if isinstance(here, dict) and not isinstance(here.get(step), dict | list):
                here[step] = {}
            here = here[step]
        here[way[-1]] = _parsed(value)
    except (IndexError, KeyError, TypeError):
        return f"--set {setting}", f"there is no place {place}"
    except (yaml.YAMLError, ValueError) as wrong:
        return f"--set {setting}", _why(wrong)
    return None
