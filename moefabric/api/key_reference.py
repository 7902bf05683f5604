"""Keys of files as their JSON Schemas describe them: type, units, default, meaning, keys inside."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self

from moefabric.config.input_file import close_matches, did_you_mean, not_modelled
from moefabric.core.errors import SpecError

KINDS: Final = ("experiment", "fabric", "sweep", "model", "hosts", "ocs-profile", "run")
"""Kinds of files, in the order in which a key is looked for."""
_UNIONS: Final = ("anyOf", "oneOf")
_UNITS: Final = re.compile(r"\(([^()]*\|[^()]*)\)\)?\??\\s\*\$$")
"""The units at the end of the pattern of a quantity."""
_PREFIXES: Final = "[kmgtKMGT]?"
_SAME_AS_US: Final = "\N{GREEK SMALL LETTER MU}s"
"""A spelling that looks like the one with the micro sign."""
_Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """A key of a file.

    Attributes:
        place: Its place, such as `wiring.regions.ocs.settle`.
        type: What its value is.
        units: Units of a quantity; empty for other values.
        default: Its default, as in YAML; empty if the description says it, or the key is needed.
        is_needed: Whether it can't be left out.
        of_kind: The values of `kind` beside it with which it may be given; empty for any.
        description: What it means.
        children: Keys inside its value, with their descriptions.
    """

    place: str
    type: str
    units: str
    default: str
    is_needed: bool
    of_kind: str
    description: str
    children: Mapping[str, str]

    @property
    def facts(self) -> dict[str, str]:
        """Type, units, default and kind, where they are known."""
        default = "none: it is needed" if self.is_needed else self.default
        facts = {
            "type": self.type,
            "units": self.units,
            "default": default,
            "of kind": self.of_kind,
        }
        return {name: text for name, text in facts.items() if text}

    def lines(self, kind: str) -> Iterator[str]:
        """Yield the key, of a file of this kind, as lines of text."""
        yield f"{self.place}: {self.description}"
        facts = {"file": kind, **self.facts}
        yield from (f"  {name:<8} {text}" for name, text in facts.items())
        if self.children:
            yield "  keys"
            width = max(map(len, self.children))
            for name, text in self.children.items():
                yield f"    {name:<{width}}  {first_sentence(text)}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]


class _Child(NamedTuple):
    """A key inside a section: the section, the key's schema, and its kinds (`Key.of_kind`)."""

    section: _Schema
    node: _Schema
    of_kind: str


def _child(name: str, branches: Sequence[_Schema]) -> _Child:
    """Return the key of this name in the sections, one for each kind, that a value may be."""
    sections = [branch for branch in branches if "properties" in branch]
    owners = [section for section in sections if name in section["properties"]]
    kinds = [str(owner["properties"].get("kind", {}).get("const", "")) for owner in owners]
    is_of_all = len(owners) == len(sections) or not all(kinds)
    node = owners[0]["properties"][name]
    if name == "kind" and len(owners) > 1:
        node = {**node, "anyOf": [owner["properties"][name] for owner in owners]}
    return _Child(owners[0], node, "" if is_of_all else " or ".join(kinds))


class KeyReference:
    """The keys of one kind of file.

    Args:
        schema: The JSON Schema of the kind.
    """

    def __init__(self, schema: _Schema) -> None:
        self._schema = schema

    @classmethod
    @cache
    def of_kind(cls, kind: str) -> Self:
        """Return the keys of a kind of file, which is one of `KINDS`."""
        file = files("moefabric") / "schemas" / f"{kind}.schema.json"
        return cls(json.loads(file.read_text()))

    @property
    def names(self) -> list[str]:
        """The outermost keys."""
        return list(self._schema["properties"])

    def key(self, place: str) -> Key:
        """Return the key at a place such as `wiring.regions.ocs.settle`.

        Positions in lists (`regions[0]`) and names in mappings (`servers.s0`) may be left out.

        Raises:
            SpecError: If there is no such key; it lists those that there are.
        """
        node, section, of_kind, name, at = self._schema, self._schema, "", "", ""
        for step in re.sub(r"\[[^\]]*\]", "", place).split("."):
            known = self._children(node)
            if step not in known and self._takes_names(node):
                continue
            if step not in known:
                raise SpecError([(at or "keys", self._unknown(step, known, at))])
            section, node, of_kind = known[step]
            name, at = step, f"{at}.{step}" if at else step
        return self._described(at, name, _Child(section, node, of_kind))

    def all(self) -> Iterator[Key]:
        """Yield all keys, each before those inside it; those of a section in itself, once."""
        yield from self._inside(self._schema, "", ())

    def _inside(self, node: _Schema, place: str, around: Sequence[_Schema]) -> Iterator[Key]:
        for name, child in self._children(node).items():
            at = f"{place}.{name}" if place else name
            yield self._described(at, name, child)
            if child.section not in around:
                yield from self._inside(child.node, at, (*around, child.section))

    def _unknown(self, step: str, known: Mapping[str, Any], at: str) -> str:
        """Return what there is instead: in the section of the key, unless it is the whole file."""
        listed = f"{step} is not one of {', '.join(known)}" if known else "has no keys inside"
        if told := not_modelled(step):
            return listed + told
        places: dict[str, list[str]] = {}
        for key in self.all():
            places.setdefault(key.place.rpartition(".")[2], []).append(key.place)
        alike = close_matches(step, places)
        if close_matches(step, known) and (at or alike[0] in known):
            return listed + did_you_mean(step, known)
        elsewhere = [place for name in alike for place in places[name][:2]]
        return listed + (f"; there is {', '.join(elsewhere)}" if elsewhere else "")

    def _described(self, place: str, name: str, child: _Child) -> Key:
        section, node, of_kind = child
        target, default = self._resolved(node), node.get("default")
        children = {inner: self._text(one.node) for inner, one in self._children(node).items()}
        return Key(
            place=place,
            type=self._type(node),
            units=_units(target),
            default="" if default is None else _written(default),
            is_needed=name in section.get("required", ()),
            of_kind=of_kind,
            description=self._text(node),
            children=children,
        )

    def _text(self, node: _Schema) -> str:
        return str(node.get("description") or self._resolved(node).get("description", ""))

    def _resolved(self, node: _Schema) -> _Schema:
        reference = str(node.get("$ref", ""))
        definition: _Schema = node
        if reference:
            definition = self._schema["$defs"][reference.rpartition("/")[2]]
        return definition

    def _branches(self, node: _Schema) -> Iterator[_Schema]:
        """Yield the schemas of a value: of each kind that it may be."""
        node = self._resolved(node)
        unions = [branch for union in _UNIONS for branch in node.get(union, ())]
        for branch in unions:
            yield from self._branches(branch)
        if not unions:
            yield node

    def _children(self, node: _Schema) -> dict[str, _Child]:
        """Return the keys inside a value, of items and of named values, with their section."""
        keys: dict[str, _Child] = {}
        branches = list(self._branches(node))
        for branch in branches:
            names = [name for name in branch.get("properties", {}) if name not in keys]
            keys |= {name: _child(name, branches) for name in names}
            for inner in (branch.get("items"), branch.get("additionalProperties")):
                if isinstance(inner, dict) and inner:
                    keys = self._children(inner) | keys
        return keys

    def _takes_names(self, node: _Schema) -> bool:
        return any(
            isinstance(branch.get("additionalProperties"), dict) for branch in self._branches(node)
        )

    def _type(self, node: _Schema) -> str:
        words = (self._branch_type(branch) for branch in self._branches(node))
        return " or ".join(dict.fromkeys(filter(None, words)))

    def _branch_type(self, node: _Schema) -> str:
        match node:
            case {"const": value}:
                text = _written(value)
            case {"enum": values}:
                text = f"one of {', '.join(map(_written, values))}"
            case {"type": "array"}:
                text = f"list of {self._type(node.get('items') or {}) or 'values'}"
            case {"type": "object", "additionalProperties": dict(inner)}:
                text = f"mapping of names to {self._type(inner) or 'values'}"
            case {"type": "object"}:
                text = "mapping of keys"
            case {"type": "string", "examples": examples}:
                text = f"text such as {', '.join(examples)}"
            case {"type": "integer" | "number" as kind}:
                unit = str(node.get("description", "")).partition("bare number is in ")[2]
                of_unit = f" of {unit.rstrip('.')}" if unit else ""
                text = f"{'whole number' if kind == 'integer' else 'number'}{of_unit}{_range(node)}"
            case {"type": str(kind)}:
                text = {"string": "text", "boolean": "true or false"}.get(kind, "")
            case _:
                text = ""
        return text


def _units(node: _Schema) -> str:
    for branch in [node, *(part for union in _UNIONS for part in node.get(union, ()))]:
        if match := _UNITS.search(str(branch.get("pattern", ""))):
            prefixes = ", with k, M, G or T" if _PREFIXES in str(branch["pattern"]) else ""
            names = (name for name in match[1].split("|") if name != _SAME_AS_US)
            return f"{', '.join(names)}{prefixes}"
    return ""


def _range(node: _Schema) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    bounds = [
        f"at least {_bound(least)}" if least is not None and most is None else "",
        f"{_bound(least)} to {_bound(most)}" if least is not None and most is not None else "",
        f"at most {_bound(most)}" if most is not None and least is None else "",
        f"more than {_bound(node['exclusiveMinimum'])}" if "exclusiveMinimum" in node else "",
        f"less than {_bound(node['exclusiveMaximum'])}" if "exclusiveMaximum" in node else "",
    ]
    return "".join(f", {bound}" for bound in bounds if bound)


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _written(value: Any) -> str:
    """Return a value as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)
