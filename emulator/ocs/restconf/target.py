"""Target of a request: the path of its URI, resolved by the schema (RFC 8040, section 3.5.3)."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from moefabric.emulator.ocs.restconf.encoding import validate
from moefabric.emulator.ocs.restconf.errors import ProtocolError, absent
from moefabric.emulator.ocs.restconf.schema import CONTAINERS, OPTICAL, Node

SEGMENT = re.compile(
    r"(?:([A-Za-z_][A-Za-z0-9_.-]*):)?([A-Za-z_][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL
)
MAX_STEPS = 8


@dataclass(frozen=True)
class Step:
    """Step of a path. `client_name` is the name that the client wrote."""

    part: Node
    module: str
    client_name: str
    key: str | None = None

    @property
    def key_value(self) -> Any:
        """The key as a value of the list's key leaf; RestconfError if it is none."""
        return validate(self.part[self.part.key], self.key)

    def __str__(self) -> str:
        path = f"/{self.module}:{self.part.name}"
        return path if self.key is None else f"{path}[{self.part.key}='{self.key}']"


@dataclass(frozen=True)
class Target:
    """A data resource: the steps to it from a container; without steps, the whole datastore."""

    steps: tuple[Step, ...] = ()

    @property
    def top(self) -> Node:
        """The container at the top; undefined for the datastore itself."""
        return self.steps[0].part

    @property
    def last(self) -> Step:
        """The last step."""
        return self.steps[-1]

    @property
    def is_whole_list(self) -> bool:
        """Whether this is a list without a key."""
        return bool(self.last.part.key) and self.last.key is None

    @property
    def is_entry(self) -> bool:
        """Whether this is an entry of a list."""
        return self.last.key is not None

    @property
    def is_config(self) -> bool:
        """Whether clients can write it."""
        return all(step.part.config for step in self.steps)

    def __str__(self) -> str:
        return "".join(map(str, self.steps)) or "/"


def parse_target(path: str) -> Target:
    """Resolve a path below the datastore, such as `/optical-switch:cross-connects/pair=1`.

    Raises:
        RestconfError: if the schema has no such resource.
    """
    segments = list(filter(None, path.split("/")))
    if len(segments) > MAX_STEPS:
        raise absent(path)
    steps: list[Step] = []
    for segment in segments:
        steps.append(_step(segment, steps[-1] if steps else None))
    return Target(tuple(steps))


def _step(segment: str, before: Step | None) -> Step:
    match = SEGMENT.fullmatch(segment)
    if match is None:
        raise ProtocolError("invalid-value", f"{segment[:64]!r} is no step of a path")
    module, name, key = match.groups()
    part = _part(name, before)
    own = (part and part.module) or (before.module if before else OPTICAL)
    if part is None or (module and module != own):
        raise absent(segment)
    if key is not None and (not part.key or "," in key):
        raise ProtocolError("invalid-value", f"{name} has no such key: {key[:64]}")
    return Step(part, own, name, None if key is None else _unquote(key))


def _part(name: str, before: Step | None) -> Node | None:
    if before is None:
        return CONTAINERS.get(name)
    if before.part.key and before.key is None:
        return None
    return before.part.child(name)


def _unquote(key: str) -> str:
    try:
        return unquote(key, errors="strict")
    except UnicodeDecodeError:
        raise ProtocolError("invalid-value", "a key is not UTF-8") from None
