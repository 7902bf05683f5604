"""Logs of fabrics that could not be brought up, kept beside the run directories."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from moefabric.config.run_directory import RunDirectory, run_root

_FOLDER: Final = ".failed"
"""Folder of the logs; no fabric's name begins with a dot."""
_KEPT: Final = 4


def keep_logs(run_dir: RunDirectory) -> Path | None:
    """Move the logs of a fabric to the folder of failed starts, which keeps the newest ones.

    Returns:
        The folder with the logs; None if there are none.
    """
    logs, kept = run_dir.log_file("any").parent, _folder(run_dir.name)
    try:
        if not any(log.stat().st_size for log in logs.iterdir()):
            return None
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        logs.rename(kept)
    except OSError:  # nothing was started, or the folder can't be written
        return None
    newest = sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return kept


def forget(fabric: str) -> None:
    """Remove the logs of an earlier failure to bring a fabric up."""
    shutil.rmtree(_folder(fabric), ignore_errors=True)
    with suppress(OSError):  # logs of other fabrics, or none
        _folder(fabric).parent.rmdir()


def _folder(fabric: str) -> Path:
    return run_root() / _FOLDER / fabric
