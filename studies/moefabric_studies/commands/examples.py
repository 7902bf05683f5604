"""The folders of examples that studies read."""

from pathlib import Path

import click


def examples_folder(folder: Path) -> Path:
    """Return a folder of examples, which are in moefabric's repository.

    Raises:
        click.UsageError: If there is no such folder here.
    """
    if not folder.is_dir():
        remedy = "run this in moefabric's repository, or give the path of its folder"
        raise click.UsageError(f"{folder}: no such folder: {remedy}")
    return folder
