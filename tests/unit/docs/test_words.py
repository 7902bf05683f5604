"""One word for one thing: the glossary against names of modules, classes, keys and commands."""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import click
import pytest

from moefabric.ui.cli.main import main
from tests.support.paths import REPOSITORY

GLOSSARY = (REPOSITORY / "docs/glossary.md").read_text()
TESTBED = ("moefabric", "agents", "controller", "emulator")
MOST_SHARED_CLASS_NAMES = 25
"""Names of public classes of the testbed that more than one module defines; it may only fall."""


@cache
def sources() -> dict[str, str]:
    """The modules of the testbed by path."""
    listed = subprocess.run(
        ["git", "ls-files", *(f"{place}/*.py" for place in TESTBED)],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {path: (REPOSITORY / path).read_text() for path in listed}


@cache
def public_classes() -> list[tuple[str, str]]:
    """Names of classes, with the paths of their modules."""
    return [
        (name, path)
        for path, text in sources().items()
        for name in re.findall(r"^ *class ([A-Za-z]\w*)[(\[:]", text, re.MULTILINE)
    ]


def keys(schema: object) -> Iterator[str]:
    """Yield the names of all properties of a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys(value)


def commands(command: click.Command, name: str = "") -> Iterator[str]:
    """Yield the names of commands and of their options."""
    yield name
    for parameter in command.params:
        yield from (option.strip("-") for option in parameter.opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            if (one := command.get_command(context, child)) is not None:
                yield from commands(one, child)


@cache
def names() -> dict[str, str]:
    """All names, with where they are."""
    found = {path.rsplit("/", 1)[1].removesuffix(".py"): path for path in sources()}
    found |= dict(public_classes())
    for file in sorted((REPOSITORY / "docs/schemas").glob("*.json")):
        found |= dict.fromkeys(keys(json.loads(file.read_text())), file.name)
    found |= dict.fromkeys(commands(main), "the command line")
    return found


@cache
def words(name: str) -> str:
    """A name as words in lower case, between spaces."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return f" {re.sub(r'[^A-Za-z0-9]+', ' ', apart).lower()} "


def unused() -> list[tuple[str, set[str]]]:
    """The words of the glossary's last table, with the names that may have them."""
    table = GLOSSARY.split("## Words that are not used")[1]
    rows = [line.strip("|\n ").split("|") for line in table.splitlines() if line.startswith("|")]
    return [
        (word.strip(), set(re.findall(r"`([^`]+)`", row[2] if len(row) > 2 else "")))
        for row in rows[2:]
        for word in row[0].split(",")
    ]


@pytest.mark.parametrize(("word", "exceptions"), unused(), ids=[word for word, _ in unused()])
def test_word_that_the_glossary_replaces_is_in_no_name(word: str, exceptions: set[str]) -> None:
    plural = f" {word}s "
    having = {
        name: place
        for name, place in names().items()
        if f" {word} " in words(name) or plural in words(name)
    }
    assert {name: place for name, place in having.items() if name not in exceptions} == {}


def test_exceptions_of_the_glossary_exist() -> None:
    excepted = {name for _, exceptions in unused() for name in exceptions}
    assert excepted
    assert excepted <= names().keys()


def test_fewer_class_names_are_defined_twice() -> None:
    places = defaultdict[str, list[str]](list)
    for name, path in public_classes():
        places[name].append(path)
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert len(shared) <= MOST_SHARED_CLASS_NAMES, shared
