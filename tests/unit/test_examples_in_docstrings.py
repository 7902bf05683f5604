"""Examples in docstrings run, and print what they say."""

import doctest
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import moefabric

PACKAGE = Path(moefabric.__file__).parent
EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)


def modules_with_examples() -> Iterator[str]:
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for path in (Path(folder, file) for file in files if file.endswith(".py")):
            if EXAMPLE.search(path.read_text()):
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("module", sorted(modules_with_examples()))
def test_examples_of_module_print_what_they_say(module: str) -> None:
    result = doctest.testmod(import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted, "no docstring holds the examples of this file"
    assert not result.failed
