"""The bundle: the agent as one file, a zip application that any `python3 FILE` of 3.8 or later runs."""

import io
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).with_name("engine")
AGENT: Final = PACKAGE / "__main__.py"
"""The agent where the package is installed: `python3 AGENT --name s0 --control PATH`."""

_DOOR: Final = b"import sys\n\nfrom agents.engine.start import main\n\nsys.exit(main())\n"


def bundle() -> bytes:
    """The file's bytes: the same for the same source, on whichever machine and whenever they are made."""
    files = {"__main__.py": _DOOR, "agents/__init__.py": b""}
    files |= {f"agents/engine/{module.name}": module.read_bytes() for module in PACKAGE.glob("*.py")}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980, when zip's time begins, and stored as it is
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return made.getvalue()
