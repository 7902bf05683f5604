"""Packs the agent into one file: a zip application that `python3 FILE` (3.8 or later) runs."""

import io
import zipfile
from pathlib import Path
from typing import Final

from moefabric import runtime

PACKAGE: Final = Path(__file__).parents[1] / "engine"
AGENT: Final = PACKAGE / "__main__.py"
"""The agent's program where this package is installed: `python3 AGENT --name s0 --control PATH`."""
_SHARED: Final = "connection_limit event_loop line_channel listener scratch_folder structured_log"
SHARED_MODULES: Final = tuple(
    Path(runtime.__file__).with_name(f"{name}.py") for name in _SHARED.split()
)
"""Modules of `moefabric.runtime` that the agent needs."""

_MAIN: Final = b"import sys\n\nfrom moefabric.agents.engine.main import main\n\nsys.exit(main())\n"


def bundle() -> bytes:
    """Return the file's bytes. Equal sources give equal bytes, on any machine and at any time."""
    files = {
        "__main__.py": _MAIN,
        "moefabric/__init__.py": b"",
        "moefabric/agents/__init__.py": b"",
        "moefabric/runtime/__init__.py": b"",
    }
    files |= {
        f"moefabric/agents/engine/{module.name}": module.read_bytes()
        for module in PACKAGE.glob("*.py")
    }
    files |= {f"moefabric/runtime/{module.name}": module.read_bytes() for module in SHARED_MODULES}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980, zip's earliest date, and not compressed
            entry.create_system = 3
            archive.writestr(entry, files[name])
    return data.getvalue()
