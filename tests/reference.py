"""Pages of all commands and of all keys: `python -m tests.reference docs` writes them.

The commands are those of moefabric itself. What other packages add differs by installation.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from moefabric.api.key_reference import Key, KeyReference
from moefabric.core.units import DURATIONS
from moefabric.ui.cli.main import SECTIONS, main

_GENERATED: Final = "<!-- Written by `make reference`. -->"
_PREFORMATTED: Final = "\b\n"
"""What precedes a paragraph whose lines click leaves alone."""
_FILES: Final = {
    "experiment": "Experiment: `moefabric run`, `train`, `predict`",
    "fabric": "Fabric: `moefabric up`",
    "sweep": "Sweep: `moefabric sweep`",
    "model": "Model: `moefabric model show`, and `model:` of an experiment",
    "hosts": "Hosts: `run --hosts`, and `hosts:` of an experiment",
    "ocs-profile": "Profile of an optical circuit switch: `ocs: {profile: FILE}`",
}
"""Headings of the kinds of files that users write."""


def commands_page() -> str:
    """Return the page of all commands, in the sections of the help."""
    context = click.Context(main, info_name="moefabric", **main.context_settings)
    lines = [_GENERATED, "# Commands", "", *_paragraphs(main), "## Exit status", ""]
    lines += [
        "| status | means |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | an error, which is reported in one line |",
        "| 2 | wrong usage: words that are wrong with any file and on any fabric |",
        "| 3 | measurements that can't be trusted |",
        "| 4 | a regression (`compare`) |",
        "| 130 | interrupted; nothing that the command started runs on |",
        "",
    ]
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            command = main.get_command(context, name)
            assert command is not None
            lines += _command(command, name, context, "###")
    return "\n".join(lines).rstrip() + "\n"


def _command(
    command: click.Command, name: str, parent: click.Context, heading: str
) -> Iterator[str]:
    """Yield the lines about a command, and those inside it."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"{heading} {context.command_path}", "")
    yield from (f"    {context.command_path} {usage}", "")
    yield from _paragraphs(command)
    records = [
        record
        for option in command.params
        if isinstance(option, click.Option) and (record := option.get_help_record(context))
    ]
    if records:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in records)
        yield ""
    examples = getattr(command, "examples", ())
    yield from (f"    {example}" for example in examples)
    yield from [""] * bool(examples)
    if isinstance(command, click.Group):
        for inner, below in sorted(command.commands.items()):
            yield from _command(below, inner, context, f"{heading}#")


def _paragraphs(command: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith(_PREFORMATTED):
            lines = paragraph.removeprefix(_PREFORMATTED).splitlines()
            yield from (f"    {line}" for line in lines)
        else:
            yield " ".join(paragraph.split())
        yield ""


def keys_page() -> str:
    """Return the page of all keys of the files that users write."""
    schema = (
        "`moefabric schema KIND` the JSON Schema of a kind of file, by which editors complete keys."
    )
    lines = [
        _GENERATED,
        "# Keys of files",
        "",
        f"`moefabric explain KEY` prints one key, {schema} Times are within {DURATIONS}.",
        "",
    ]
    for kind, title in _FILES.items():
        lines += [f"## {title}", "", "| key | value | meaning |", "|---|---|---|"]
        lines += [_key_row(key) for key in KeyReference.of_kind(kind).all()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _key_row(key: Key) -> str:
    value = key.type
    if key.is_needed:
        value += "; needed"
    elif key.default:
        value += f"; default `{key.default}`"
    if key.of_kind:
        value += f"; of kind {key.of_kind}"
    return f"| `{key.place}` | {_cell(value)} | {_cell(key.description)} |"


def _cell(text: str) -> str:
    """Return text as the contents of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


PAGES: Final = {"commands.md": commands_page, "keys.md": keys_page}
"""Functions that return the pages, by their file."""

if __name__ == "__main__":
    for file, page in PAGES.items():
        Path(sys.argv[1], file).write_text(page())
