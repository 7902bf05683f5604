"""Plug-ins: parts of the testbed that are found by name, built in or from another package.

A package registers a part as an entry point of one of the groups below; the built-in parts are
entry points of moefabric itself. A reference is the name of an entry point, or
`package.module:Name` for a part that no package registers. The part is an object with the members
of the group's Protocol, or a class or function that returns such an object when it is called.

A reference may end with arguments of that call, as in `bigmac(r=0.25)`: keywords, each with a
number, a word, true or false.

Files may come from others. A part that no package registers is looked at before anything is called,
and commands let files name modules of installed distributions only (`modules_in_files`).
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module, metadata
from inspect import get_annotations, isclass, isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from moefabric.core.errors import SpecError, fault_text
from moefabric.core.ocs_dialect import OcsDialect
from moefabric.core.transport import Transport

OWN_PACKAGE: Final = "moefabric"
GROUPS: Final[dict[str, str]] = {}
"""The noun of each group's parts, which messages use."""


def _group(name: str, noun: str) -> str:
    """Add a group to `GROUPS`; return its name."""
    group = f"moefabric.{name}"
    GROUPS[group] = noun
    return group


POLICIES: Final = _group("policies", "policy")
PLACEMENTS: Final = _group("placements", "placement")
PAYLOAD_TRANSFORMS: Final = _group("payload_transforms", "payload transform")
COLLECTIVE_ORDERS: Final = _group("collective_orders", "collective order")
EXPERT_EXCHANGES: Final = _group("expert_exchanges", "expert exchange")
SCHEDULES: Final = _group("schedules", "schedule")
TRANSPORTS: Final = _group("transports", "transport")
TRACE_READERS: Final = _group("trace_readers", "trace reader")
TRACE_WRITERS: Final = _group("trace_writers", "trace writer")
STUDIES: Final = _group("studies", "study")
OCS_DIALECTS: Final = _group("ocs_dialects", "OCS dialect")
OCS_DRIVERS: Final = _group("ocs_drivers", "OCS driver")
OCS_PROFILES: Final = _group("ocs_profiles", "OCS profile")


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names of a group's registered parts, moefabric's first.

    Args:
        group: A key of `GROUPS`.
    """
    return tuple(_registered(group))


def built_in_names(group: str) -> tuple[str, ...]:
    """Return the names of moefabric's own parts of a group."""
    return tuple(_built_in(group))


def plugin_reference(group: str, name: str) -> str:
    """Return the module and object that a registered part is."""
    return _registered(group)[name].value


def plugin_module(group: str, reference: str) -> ModuleType | None:
    """Return the module of another package that a reference leads to; None for moefabric's own.

    Raises:
        SpecError: As `load_plugin`.
    """
    part_name = reference.partition("(")[0].strip()
    if ":" not in part_name and part_name in _built_in(group):
        return None
    _found(group, reference)
    value = part_name if ":" in part_name else plugin_reference(group, part_name)
    name = value.partition(":")[0].strip()
    return None if _top(name) == OWN_PACKAGE else sys.modules[name]


def is_foreign(reference: str) -> bool:
    """Return whether a reference names a module that no installed distribution has."""
    name, colon, _ = reference.partition("(")[0].partition(":")
    return bool(colon) and _top(name) not in {OWN_PACKAGE, *metadata.packages_distributions()}


def _top(module: str) -> str:
    """Return the package or module at the top of a module's name."""
    return module.strip().partition(".")[0]


def load_plugin(group: str, reference: str, protocol: type | None = None) -> Any:
    """Return the part that a reference names.

    Args:
        group: A key of `GROUPS`.
        reference: Name of an entry point of the group, or `package.module:Name`, and maybe
            arguments.
        protocol: The Protocol whose members the part must have; None for any object.

    Returns:
        The part; classes and functions are called once in a process for each reference. Of
        references that no package registers, classes are called that have the methods of the
        Protocol, and functions that return such a class by their annotation.

    Raises:
        SpecError: If no part has this name, its module can't be imported, or it lacks members.
    """
    if ":" in reference:
        _check_made(group, reference, protocol)
    part = _loaded(group, reference)
    with _failures_named(group, reference, type(part).__module__):
        missing = (
            [name for name in _members(protocol) if not hasattr(part, name)] if protocol else []
        )
    if protocol is not None and missing:
        lacks = f"{reference!r} has no {', '.join(missing)}"
        remedy = f"a {GROUPS[group]} has the members of {_full_name(protocol)}"
        raise SpecError([(GROUPS[group], f"{lacks}: {remedy}")])
    return part


_from_settings: ContextVar[set[str] | None] = ContextVar("from_settings", default=None)
"""Texts of the command line, which may name any module; None if files may, too."""
_in_current_folder: ContextVar[bool] = ContextVar("in_current_folder", default=True)
"""Whether modules are imported from the current folder, too."""


@contextmanager
def modules_in_files(*, installed_only: bool) -> Iterator[None]:
    """Let files name modules of installed distributions, or all that Python finds."""
    earlier = _from_settings.set(set() if installed_only else None)
    try:
        yield
    finally:
        _from_settings.reset(earlier)


def trust_settings(value: Any) -> None:
    """Let the texts in a value of the command line name any module."""
    match value:
        case str():
            trusted = _from_settings.get()
            if trusted is not None:
                trusted.add(value)
        case Mapping():
            trust_settings(list(value.values()))
        case list():
            for entry in value:
                trust_settings(entry)


def load_named_by_file(group: str, reference: str, protocol: type | None = None) -> Any:
    """Return the part that a file names; arguments as of `load_plugin`.

    Raises:
        SpecError: If the part is of a module that no installed distribution has; or as
            `load_plugin`.
    """
    trusted = _from_settings.get()
    if trusted is None or reference in trusted:
        return load_plugin(group, reference, protocol)
    if is_foreign(reference):
        raise SpecError([(GROUPS[group], _foreign(reference, _top(reference.partition(":")[0])))])
    # Distributions list modules that they lack, and packages to which any folder can add modules.
    earlier = _in_current_folder.set(False)
    try:
        return load_plugin(group, reference, protocol)
    finally:
        _in_current_folder.reset(earlier)


def _foreign(reference: str, module: str) -> str:
    return (
        f"{reference!r}: no installed package has the module {module}, and whoever wrote the file "
        "may run any program by it: install it as a package, or name it by --set or --plugins any"
    )


def transport_named(reference: str) -> Transport:
    """Return a transport by its name, or by its module and name; raises as `load_plugin`."""
    transport: Transport = load_plugin(TRANSPORTS, reference, Transport)
    return transport


def ocs_dialect(name: str) -> OcsDialect:
    """Return the dialect of the emulated OCS with a name; raises as `load_plugin`."""
    dialect = load_plugin(OCS_DIALECTS, name)
    if not isinstance(dialect, OcsDialect):
        message = f"{name!r} is a {type(dialect).__name__}; an OcsDialect is needed"
        raise SpecError([(GROUPS[OCS_DIALECTS], message)])
    return dialect


def ocs_dialects() -> dict[str, OcsDialect]:
    """Return all dialects of the emulated OCS by name; raises as `load_plugin`."""
    return {name: ocs_dialect(name) for name in plugin_names(OCS_DIALECTS)}


@cache
def _registered(group: str) -> Mapping[str, metadata.EntryPoint]:
    """Return a group's entry points by name. Those of moefabric win, and come first."""
    ours = _built_in(group)
    return ours | _by_name(metadata.entry_points(group=group), group) | ours


@cache
def _built_in(group: str) -> dict[str, metadata.EntryPoint]:
    """Return moefabric's entry points of a group, for which no other distribution is read."""
    ours = next(iter(metadata.distributions(name="moefabric")), None)
    return {} if ours is None else _by_name(ours.entry_points, group)


def _by_name(entries: metadata.EntryPoints, group: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in sorted(entries.select(group=group))}


_CALL: Final = re.compile(r"[^()]+\((?P<arguments>[^()]*)\)\s*")
_ARGUMENT: Final = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>[\w.+/-]+)\s*")


def _arguments(reference: str) -> dict[str, Any]:
    """Return the arguments of a reference.

    Raises:
        ValueError: If they aren't keywords with plain values.
    """
    if "(" not in reference:
        return {}
    call = _CALL.fullmatch(reference)
    text = "" if call is None else call["arguments"]
    matches = [_ARGUMENT.fullmatch(part) for part in text.split(",")] if text.strip() else []
    arguments = {match["name"]: _value(match["value"]) for match in matches if match}
    if call is None or len(arguments) != len(matches):
        raise ValueError("arguments are written as in name(size=4, kind=fast), each name once")
    return arguments


def _value(text: str) -> int | float | bool | str:
    """Return the number, truth value or word that a text is."""
    if text in {"true", "false"}:
        return text == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def _check_made(group: str, reference: str, protocol: type | None) -> None:
    """Check that what a reference would call makes a part of the group.

    Raises:
        SpecError: If it is neither a class with the members of the Protocol, nor a function that
            returns one by its annotation; or as `load_plugin`.
    """
    part = _found(group, reference)
    if not (isclass(part) or isfunction(part) or "(" in reference):
        return
    returned = part if isclass(part) else _returned(part)
    if protocol is None:
        fault = f"a {GROUPS[group]} is an object, and nothing is called for it"
    elif returned is None:
        fault = f"a class with the members of {_full_name(protocol)} is called, or a function "
        fault += "whose annotation says that it returns one"
    elif lacking := [name for name in _members(protocol) if not _sets(returned, name)]:
        fault = f"{returned.__qualname__} has no {', '.join(lacking)}: a {GROUPS[group]} has the "
        fault += f"members of {_full_name(protocol)}"
    else:
        return
    raise SpecError([(GROUPS[group], f"{reference!r}: {fault}")])


def _returned(part: Any) -> type | None:
    """Return the class that a function returns by its annotation; None if it has none."""
    returned = None
    if isfunction(part):
        with suppress(Exception):  # an annotation may name what its module doesn't import
            returned = get_annotations(part, eval_str=True).get("return")
    return returned if isclass(returned) else None


def _sets(kind: type, name: str) -> bool:
    """Return whether objects of a class have a member, as far as the class tells."""
    starts = (
        vars(base).get(start) for base in kind.__mro__ for start in ("__init__", "__post_init__")
    )
    return (
        hasattr(kind, name)
        or any(name in vars(base).get("__annotations__", ()) for base in kind.__mro__)
        or any(name in start.__code__.co_names for start in starts if isfunction(start))
    )


def _full_name(protocol: type) -> str:
    return f"{protocol.__module__}.{protocol.__name__}"


@cache
def _found(group: str, reference: str) -> Any:
    """Return the object that a reference names, before any call."""
    part_name = reference.partition("(")[0].strip()
    module, colon, name = part_name.partition(":")
    # The registry takes long to read. Built-in parts and names of modules need none.
    built_in = {} if colon else _built_in(group)
    registered = built_in if colon or part_name in built_in else _registered(group)
    if part_name in registered:
        module, _, name = registered[part_name].value.partition(":")
    elif not (colon and module and name):
        raise SpecError([(GROUPS[group], _unknown_name(group, part_name))])
    with _failures_named(group, reference, module):
        part: Any = import_module(module)
        for attribute in filter(None, name.split(".")):
            part = getattr(part, attribute)
        return part


def _unknown_name(group: str, name: str) -> str:
    """Return what is wrong about a name that is no entry point of a group, nor one in a module."""
    from moefabric.config.input_file import did_you_mean  # imports this module

    if name.endswith(".py"):
        return f"{name!r} is a file{_without_suffix(Path(name).name)}"
    known = ", ".join(_registered(group))
    known = known or "(none: install moefabric again, by packaging/setup)"
    return (
        f"{name!r} is not one of {known}, nor package.module:Name"
        f"{did_you_mean(name, _registered(group))}"
    )


@cache
def _loaded(group: str, reference: str) -> Any:
    """Return the part that a reference names, made by a call of a class or function."""
    part = _found(group, reference)
    with _failures_named(group, reference, getattr(part, "__module__", reference)):
        arguments = _arguments(reference)
        called = isclass(part) or isfunction(part) or arguments
        return part(**arguments) if called else part


@contextmanager
def _failures_named(group: str, reference: str, module: str) -> Iterator[None]:
    """Name the module of a reference in what its code raises; it may import its neighbours."""
    try:
        with _current_folder_on_path():
            yield
    except (Exception, SystemExit) as error:  # code of others may raise anything
        fault = f"{reference!r}: {module} fails: {fault_text(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            fault += _lookup_remedy(module, error.name)
        if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
            fault += _alike_name(error.name or "", error.obj)
        raise SpecError([(GROUPS[group], fault)]) from error


def _lookup_remedy(module: str, missing: str) -> str:
    """Return where modules are looked up, if what is missing is the module of a reference."""
    if not f"{module}.".startswith(f"{missing}.") and missing != module.removesuffix(".py"):
        return ""
    if module.endswith(".py"):
        return _without_suffix(module)
    folder = f" and in the current folder, {Path.cwd()}" if _in_current_folder.get() else ""
    return f"; modules are looked up on Python's path{folder}, not in the folder of a file"


def _without_suffix(file: str) -> str:
    return f"; a module is named without .py: {file.removesuffix('.py')}:Name"


def _alike_name(name: str, module: ModuleType) -> str:
    """Return the names of a module that a name, which it has not, resembles."""
    from moefabric.config.input_file import did_you_mean  # imports this module

    return did_you_mean(name, [known for known in dir(module) if not known.startswith("_")])


@contextmanager
def _current_folder_on_path() -> Iterator[None]:
    """Let modules be imported from the current folder too, as `python -m` does."""
    folder = str(Path.cwd())
    is_there = folder in sys.path or "" in sys.path
    added = [folder] if _in_current_folder.get() and not is_there else []
    sys.path += added
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)


@cache
def _members(protocol: type) -> tuple[str, ...]:
    members = {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *getattr(base, "__annotations__", ()))
        if not name.startswith("_")
    }
    return tuple(sorted(members))
