"""Saved results in a folder, as a list and as pages."""

import re
import secrets
from collections import OrderedDict
from pathlib import Path
from typing import Final

from moefabric import Result, SpecError
from moefabric.results.parts import Json

MOST_FILES: Final = 500
"""Number of the newest files that are listed."""
_HEAD_BYTES: Final = 4096
_MOST_BYTES: Final = 256 << 20
_MOST_PAGES: Final = 8
_SUFFIXES: Final = (".json", ".jsonl")
_CODE: Final = re.compile(r"<footer>.*?</footer>|<script.*?</script>", re.DOTALL)
"""Parts that don't work in the frame: the script that saves the JSON, and its button."""
_FIELD: Final = re.compile(r'"(experiment|verdict)":\s*"((?:[^"\\]|\\.){0,200})"')


class SavedRuns:
    """Results in a folder and its subfolders.

    Attributes:
        pages: Rendered pages by key, the newest ones only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = OrderedDict[str, str]()

    def entries(self) -> list[Json]:
        """Return file, size, time, experiment and verdict of each result, the newest first."""
        files = [
            (stat.st_mtime, stat.st_size, path)
            for suffix in _SUFFIXES
            for path in self.folder.rglob(f"*{suffix}")
            if path.is_file() and (stat := path.stat()).st_size
        ]
        files.sort(reverse=True)
        entries = []
        for modified, size, path in files[:MOST_FILES]:
            fields = _head_fields(path)
            if "experiment" in fields:
                file = str(path.relative_to(self.folder))
                entries.append({"file": file, "size": size, "modified": modified, **fields})
        return entries

    def add_page(self, file: str) -> str:
        """Render a result.

        Returns:
            Its key in `pages`; nobody can guess it.

        Raises:
            SpecError: If the file is not one of the folder's results, or has a wrong value.
        """
        page = Result.load(self._path(file)).page()
        key = secrets.token_urlsafe(24)
        self.pages[key] = _CODE.sub("", page)
        while len(self.pages) > _MOST_PAGES:
            self.pages.popitem(last=False)
        return key

    def _path(self, file: str) -> Path:
        root = self.folder.resolve()
        path = (root / file).resolve()
        if not path.is_relative_to(root) or path.suffix not in _SUFFIXES or not path.is_file():
            raise SpecError([(file, f"is not a result in {self.folder}")])
        if path.stat().st_size > _MOST_BYTES:
            raise SpecError([(file, "is too large to show: `moefabric report` writes its page")])
        return path


def _head_fields(path: Path) -> dict[str, str]:
    """Return the name of the experiment and the verdict, which a result begins with."""
    try:
        with path.open(errors="replace") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return {}
    return dict(reversed(_FIELD.findall(head)))
