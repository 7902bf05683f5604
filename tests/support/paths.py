"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = REPOSITORY / "examples"
GOLDEN: Final = REPOSITORY / "tests" / "golden"
