"""What a request is about: the path of its URI, found in the schema."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from emulator.ocs.restconf.errors import RestconfError
from emulator.ocs.restconf.schema import BY_NAME, OPTICAL, Leaf, Node, module_of

SEGMENT = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_.-]*):)?([A-Za-z_][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL)
DEEPEST = 8


@dataclass(frozen=True)
class Step:
    """One part of a path. `called` is its name as the client has it."""

    part: Node | Leaf
    module: str
    called: str
    key: str | None = None


@dataclass(frozen=True)
class Target:
    """A data resource: the steps to it, from a container at the top. None: all there is."""

    steps: tuple[Step, ...] = ()

    @property
    def top(self) -> Node:
        """The container at the top. Not for the datastore itself."""
        top = self.steps[0].part
        assert isinstance(top, Node)
        return top

    @property
    def last(self) -> Step:
        """Its last step."""
        return self.steps[-1]

    @property
    def is_whole_list(self) -> bool:
        """A list without a key."""
        return isinstance(self.last.part, Node) and bool(self.last.part.key) and self.last.key is None

    @property
    def is_entry(self) -> bool:
        """An entry of a list."""
        return isinstance(self.last.part, Node) and self.last.key is not None

    @property
    def is_config(self) -> bool:
        """Whether anything of it can be set."""
        return all(step.part.config for step in self.steps)

    def __str__(self) -> str:
        said = "".join(f"/{step.module}:{step.part.name}{_key(step)}" for step in self.steps)
        return said or "/"


def target(path: str) -> Target:
    """`/optical-switch:cross-connects/pair=1`, below the datastore. RestconfError for what there isn't."""
    segments = [segment for segment in path.split("/") if segment]
    if len(segments) > DEEPEST:
        raise _absent(path)
    steps: list[Step] = []
    for segment in segments:
        steps.append(_step(segment, steps[-1] if steps else None))
    return Target(tuple(steps))


def _step(segment: str, before: Step | None) -> Step:
    match = SEGMENT.fullmatch(segment)
    if match is None:
        raise RestconfError("invalid-value", f"{segment[:64]!r} is no step of a path", kind="protocol")
    module, name, key = match.groups()
    part = _part(name, before)
    own = module_of(part, before.module if before else OPTICAL) if part else ""
    if part is None or (module and module != own):
        raise _absent(segment)
    is_list = isinstance(part, Node) and part.key
    if key is not None and (not is_list or "," in key):
        raise RestconfError("invalid-value", f"{name} has no such key: {key[:64]}", kind="protocol")
    return Step(part, own, name, None if key is None else _plain(key))


def _part(name: str, before: Step | None) -> Node | Leaf | None:
    if before is None:
        return BY_NAME.get(name)
    if isinstance(before.part, Leaf) or (before.part.key and before.key is None):
        return None
    return before.part.child(name)


def _plain(key: str) -> str:
    try:
        return unquote(key, errors="strict")
    except UnicodeDecodeError:
        raise RestconfError("invalid-value", "a key is not UTF-8", kind="protocol") from None


def _absent(name: str) -> RestconfError:
    return RestconfError("invalid-value", f"there is no {name[:64]}", status=404)


def _key(step: Step) -> str:
    if step.key is None or isinstance(step.part, Leaf):
        return ""
    return f"[{step.part.key}='{step.key}']"
