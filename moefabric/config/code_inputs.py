"""Code of plug-ins as an input of an experiment: SHA-256 digests of the files that it consists of.

A plug-in's code is the file of its module, and those of the modules that it imports from the same
folder or package, and so on. What is imported by a computed name, data that the code reads, and
other distributions don't count. moefabric's own parts belong to its version and commit.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Final

from moefabric.config.inputs import digest_of
from moefabric.config.plugins import OWN_PACKAGE, plugin_module
from moefabric.config.references import named_parts
from moefabric.config.section import Section

CODE: Final = "code "
"""Start of the key of a module's digest."""
_DISTRIBUTIONS: Final = frozenset(
    Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")
)
"""Folders that hold the modules of many distributions."""


def code_digests(section: Section) -> list[tuple[str, str, str]]:
    """Return key, name and digest of each file of the code that a section's plug-ins consist of.

    The name of a file of an installed package tells the package's version too.

    Raises:
        SpecError: A file can't be read, or a plug-in can't be loaded.
    """
    modules = [plugin_module(group, reference) for group, reference in named_parts(section)]
    files: dict[str, Path] = {}
    for module in modules:
        if module is not None:
            files |= _files_of(module)
    packages = packages_distributions() if files else {}
    digests = []
    for name, path in sorted(files.items()):
        owners = sorted(set(packages.get(name.partition(".")[0], ())))
        packed = "".join(f" of {owner} {version(owner)}" for owner in owners[:1])
        key = f"{CODE}{name}"
        digests.append((key, f"{path.name}{packed}", digest_of(path, key)))
    return digests


def _files_of(module: ModuleType) -> dict[str, Path]:
    """Return the files of a module and of those that it imports from its folder or package."""
    if not (own := getattr(module, "__file__", None)):
        return {}
    file, package = Path(own).resolve(), module.__name__.partition(".")[0]
    is_package = file.name == "__init__.py"
    root = file.parents[module.__name__.count(".") + is_package]
    files: dict[str, Path] = {}
    pending = [module.__name__]
    while pending:
        name = pending.pop()
        top = name.partition(".")[0]
        path = file if name == module.__name__ else _source(root, name)
        is_other = top == OWN_PACKAGE or (root in _DISTRIBUTIONS and top != package)
        if path is None or name in files or is_other:
            continue
        files[name] = path
        pending += [name.rpartition(".")[0], *_imports(name, path)]
    return files


def _source(root: Path, name: str) -> Path | None:
    """Return the file of a module below a folder; None if Python takes it from elsewhere."""
    place = root.joinpath(*name.split("."))
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if name and path.is_file():
            loaded = getattr(sys.modules.get(name), "__file__", None)
            return path if loaded is None or Path(loaded).resolve() == path else None
    return None


def _imports(name: str, path: Path) -> Iterator[str]:
    """Yield the names of what a module's file imports, and of what may be modules there."""
    try:
        nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    except (OSError, SyntaxError, ValueError):  # a compiled module, or one that was broken since
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
