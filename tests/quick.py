"""Runs the tests nearest to what changed: `python -m tests.quick [REVISION]`.

Changed are the files that differ from a revision (`HEAD` unless told), and new ones. Their tests
need no root: changed test files, those that import a changed module or name a changed file, and
for a module that no test imports those of the modules that import it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("moefabric", "moefabric_studies")
TOP_LEVEL = ("controller", "emulator", "agents")
"""Folders of the repository that are packages of `moefabric`."""
TESTS = ("tests/unit", "studies/tests/unit", "tests/golden", "tests/contract")


def changed_files(revision: str) -> list[str]:
    """Return the files that differ from a revision, and those that git does not know yet."""
    listings = (
        ["git", "diff", "--name-only", revision],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    return [
        line
        for listing in listings
        for line in subprocess.run(
            listing, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]


def module_of(file: str) -> str:
    """Return the module of a Python file: `moefabric.agents` for `agents/__init__.py`."""
    parts = Path(file.removeprefix("studies/")).with_suffix("").parts
    parts = ("moefabric", *parts) if parts[0] in TOP_LEVEL else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(text: str) -> Iterator[str]:
    """Yield the modules that a Python file imports, and names that may be modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nearest_tests(
    modules: set[str], importers: dict[str, set[str]], tests: dict[str, set[str]]
) -> set[str]:
    """Return the test files that import modules, or else those of the modules' importers.

    Args:
        modules: Changed modules.
        importers: Modules that import a module, by that module.
        tests: Modules that a test file imports, by file.

    Returns:
        Test files.
    """
    found: set[str] = set()
    for module in modules:
        wave, seen = {module}, {module}
        while wave:
            if near := {file for file, imported in tests.items() if wave & imported}:
                found |= near
                break
            wave = {above for below in wave for above in importers.get(below, ())} - seen
            seen |= wave
    return found


@cache
def _sources() -> dict[str, str]:
    """Return the text of tests and of what they share, by file."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in (*TESTS, "tests/support")
        for path in (ROOT / folder).rglob("*.py")
    }


@cache
def _imports() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the modules that test files import, by file, and the importers of modules."""
    imports = {file: set(imported_modules(text)) for file, text in _sources().items()}
    graph = grimp.build_graph(*PACKAGES)
    importers = {name: graph.find_modules_that_directly_import(name) for name in graph.modules}
    tests = {file for file in imports if Path(file).name.startswith("test_")}
    for file in imports.keys() - tests:
        for module in imports[file]:
            importers.setdefault(module, set()).add(module_of(file))
    return {file: imports[file] for file in tests}, importers


def selected_tests(changed: Iterable[str]) -> set[str]:
    """Return the test files that stand for changed files."""
    tests, importers = _imports()
    modules = {module_of(file) for file in changed if file.endswith(".py")}
    others = {Path(file).name for file in changed if not file.endswith(".py")}
    named = {file for file in tests if any(name in _sources()[file] for name in others)}
    return nearest_tests(modules, importers, tests) | named | (tests.keys() & set(changed))


def main() -> int:
    """Run the tests and return pytest's exit status."""
    changed = changed_files(*sys.argv[1:] or ["HEAD"])
    files = sorted(selected_tests(changed))
    print(f"{len(changed)} changed files, {len(files)} files of tests", flush=True)
    if not files:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *files]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
