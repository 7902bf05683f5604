"""Reads files that users write: text, JSON, and YAML with `key=value` settings applied."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from moefabric.config.plugins import trust_settings
from moefabric.config.section import InputError
from moefabric.core.errors import SpecError, UnreadableError

PathStep = int | str
"""A key of a mapping or a position in a list."""

_OF_INFERENCE: Final = {"decode", "decoding", "inference", "prefill", "serve", "serving"}
_STEP: Final = re.compile(r"\[(?P<position>[0-9]+)\]|(?:^|\.)(?P<key>[^.\[\]]+)")


MAX_BYTES: Final = 256 << 20
"""Limit of a text or JSON file."""
MAX_YAML_BYTES: Final = 1 << 20
MAX_YAML_NODES: Final = 50_000
"""Limit of the values of a YAML document, each alias counted as what it stands for."""
MAX_YAML_DEPTH: Final = 64


class _Loader(yaml.SafeLoader):
    """YAML 1.1 that also reads 1e9 as a number and refuses repeated keys and huge documents."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}
        """Values in each complete node, and its depth, with aliases expanded."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; raise ComposerError as soon as the document is too large."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # as in its stubs
        self._depth += 1
        self._count += 1
        self._check_size(self._count, self._depth, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "a value contains itself", mark)
        if not is_alias:
            inner = [self._sizes[child] for child in _children(node)]
            size = 1 + sum(values for values, _ in inner)
            depth = 1 + max((depth for _, depth in inner), default=0)
            self._check_size(size, depth, mark)
            self._sizes[node] = size, depth
        return node

    @staticmethod
    def _check_size(values: int, depth: int, mark: Any) -> None:
        if values > MAX_YAML_NODES:
            problem = f"more than {MAX_YAML_NODES} values, aliases expanded"
        elif depth > MAX_YAML_DEPTH:
            problem = f"nested more than {MAX_YAML_DEPTH} deep"
        else:
            return
        raise yaml.composer.ComposerError(None, None, problem, mark)

    def construct_mapping(self, node: yaml.MappingNode, *args: Any, **options: Any) -> Any:
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                problem = f"{key.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, *args, **options)


def _children(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes directly in a node."""
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"),
    list("-+0123456789"),
)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...` with the names that a word resembles; empty if there are none."""
    alike = close_matches(word, known)
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


def not_modelled(word: str) -> str:
    """Return `; only training is modelled ...` for a word of inference; empty for others."""
    told = "only training is modelled, and gating that was recorded at inference can be its gating"
    return f"; {told}" if word in _OF_INFERENCE else ""


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """Return the at most two names that a word resembles, the most alike first."""
    return get_close_matches(word, list(known), n=2, cutoff=0.65)


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """Return the contents of a text file.

    Args:
        limit: Most bytes that the file may have.

    Raises:
        SpecError: If the file can't be read, isn't UTF-8 or exceeds the limit.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise SpecError([(str(path), f"has more than {limit} bytes")])
        return data.decode()
    except OSError as error:
        raise UnreadableError(path, error) from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise SpecError([(str(path), f"not text in UTF-8: byte {byte:#04x}")]) from error


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file.

    Raises:
        SpecError: If the file can't be read or isn't JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError([(f"{path}:{error.lineno}", f"not JSON: {error.msg}")]) from error
    except (ValueError, RecursionError) as error:
        raise SpecError([(str(path), f"not JSON: {error}")]) from error


def read_yaml(
    path: str | Path, settings: Sequence[str] = (), needed: str = "a mapping of keys"
) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Args:
        settings: Changes such as `a.b[0].c=value`, applied in order.
        needed: What the mapping is, in the error of an empty file.

    Raises:
        SpecError: If the file can't be read as a mapping, or a setting names no place in it.
    """
    if isinstance(settings, str):
        raise SpecError([("settings", f"a list of texts is needed: [{settings!r}]")])
    text = read_text(path, MAX_YAML_BYTES)
    try:
        document = _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SpecError([(place, _yaml_problem(error))]) from error
    if document is None:
        raise SpecError([(str(path), f"is empty; {needed} is needed")])
    if not isinstance(document, dict):
        raise SpecError([(str(path), "a mapping of keys is needed")])
    if errors := [fault for setting in settings if (fault := _apply(document, setting))]:
        raise SpecError(errors)
    return document


def _parse(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def _yaml_problem(error: Exception) -> str:
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"not YAML: {problem}"


def path_steps(place: str) -> list[PathStep]:
    """Return the keys and positions of a place such as `a.b[0].c`; empty if it isn't one."""
    steps: list[PathStep] = []
    end = 0
    for match in _STEP.finditer(place):
        if match.start() != end:
            return []
        end = match.end()
        steps.append(match["key"] or int(match["position"]))
    return steps if end == len(place) else []


def change_keys(document: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Change keys of a document to values of Python.

    Args:
        document: The document, which is changed in place.
        changes: Values by place: a key, or a place such as `training.iterations`. A mapping
            changes the keys that it names and leaves the others of its section.

    Raises:
        SpecError: If a place isn't one of the document.
    """
    errors = []
    for place, value in changes.items():
        try:
            _set(document, path_steps(place), document_value(value), merge=True)
        except _NoPlaceError as error:
            errors.append((place, f"is no place in this document{error}"))
    if errors:
        raise SpecError(errors)


def document_value(value: Any, path_text: Callable[[PurePath], str] = str) -> Any:
    """Return a value of Python as YAML would give it: lists, mappings, numbers and text.

    Args:
        path_text: Returns the text of a path.
    """
    match value:
        case Mapping():
            return {str(key): document_value(entry, path_text) for key, entry in value.items()}
        case list() | tuple():
            return [document_value(entry, path_text) for entry in value]
        case PurePath():
            return path_text(value)
        case _:
            return value


def resolved(value: Any, steps: Sequence[str], folder: Path) -> Any:
    """Return a value of a document with the relative paths at a place starting at a folder.

    Args:
        value: The value; wrong values stay as they are.
        steps: Keys on the way to the paths; `*` is each key or position. Behind a last step `:`,
            the paths are the sources of mounts such as `./data:/data`, if they begin with a dot or
            tilde.
    """
    match value, list(steps):
        case str(), [] if value:
            return str(folder / Path(value).expanduser())
        case str(), [":"] if value.startswith((".", "~")):
            source, _, rest = value.partition(":")
            return f"{(folder / Path(source).expanduser()).resolve()}:{rest}"
        case dict(), [first, *later]:
            return {
                key: resolved(entry, later, folder) if first in ("*", key) else entry
                for key, entry in value.items()
            }
        case list(), ["*", *later]:
            return [resolved(entry, later, folder) for entry in value]
    return value


class _NoPlaceError(Exception):
    """A document lacks a place; the text, which may be empty, says what it has instead."""


def _set(
    document: dict[str, Any], steps: Sequence[PathStep], value: Any, *, merge: bool = False
) -> None:
    """Set the value at a place. With `merge`, a mapping changes the keys that it names.

    Raises:
        _NoPlaceError: If there is no such place.
    """
    if not steps:
        raise _NoPlaceError
    parent: Any = document
    for number, step in enumerate(steps[:-1]):
        if isinstance(parent, dict) and not isinstance(parent.get(step), dict | list):
            parent[step] = {}
        _check_step(parent, steps, number)
        parent = parent[step]
    _check_step(parent, steps, len(steps) - 1)
    last = steps[-1]
    former = parent.get(last) if isinstance(parent, dict) else parent[last]
    if merge and isinstance(former, dict) and isinstance(value, dict):
        for key, entry in value.items():
            _set(former, [key], entry, merge=True)
    else:
        parent[last] = value


def _check_step(parent: Any, steps: Sequence[PathStep], number: int) -> None:
    """Check that a value on the way to a place has the next step.

    Raises:
        _NoPlaceError: If it hasn't; it says what the value is.
    """
    step, name = steps[number], _place(steps[:number])
    if isinstance(parent, dict):
        return
    if not isinstance(parent, list):
        raise _NoPlaceError(f": {name} has no parts")
    if not isinstance(step, int):
        raise _NoPlaceError(f": {name} is a list, of which {name}[0] is the first entry")
    if step >= len(parent):
        has = f"has 0 to {len(parent) - 1}" if parent else "is empty"
        raise _NoPlaceError(f": {name} {has}")


def _place(steps: Sequence[PathStep]) -> str:
    """Return the text of a place, such as `a.b[0].c`."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return "".join(parts).removeprefix(".")


def _apply(document: dict[str, Any], setting: str) -> InputError | None:
    """Apply a setting to the document, or return the error of the setting."""
    place, equals, text = setting.partition("=")
    steps, option = path_steps(place), f"--set {setting}"
    if not equals or not place:
        return option, "is not key=value"
    try:
        value = _parse(text)
    except (yaml.YAMLError, ValueError) as error:
        return option, _yaml_problem(error)
    try:
        _set(document, steps, value)
    except _NoPlaceError as error:
        return option, f"there is no place {place}{error}"
    trust_settings(value)
    return None
