"""A fabric under test: a `Lab` whose failures, captures and programs end with the test."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from moefabric import Lab, MoefabricError
from moefabric.api.capture import Capture
from moefabric.api.lab import LightChange


class FabricUnderTest(Lab):
    """A running fabric, as the fixtures `fabric` and `shared_fabric` hand it to tests.

    Attributes:
        artefacts: Folder for what a failed test leaves: captures, events, logs, `inspect.json`.
    """

    def __init__(self, name: str, artefacts: Path) -> None:
        super().__init__(name, was_up=False)
        self.artefacts = artefacts
        self._captures: list[Path] = []

    def lit(self, *circuits: str, **choice: Any) -> LightChange:
        """Set the circuits of a region, as `light`; return when packets use them."""
        return self.light(*circuits, **choice)

    def capture(
        self, place: str, path: str | Path | None = None, length: int = 256, **limits: int | None
    ) -> Capture:
        """Return a capture of frames; without a path, only failed tests keep its file."""
        if path is None:
            self.artefacts.mkdir(parents=True, exist_ok=True)
            name = place.replace("/", "-")
            number = len(self._captures)
            path = self.artefacts / (f"{name}-{number}.pcap" if number else f"{name}.pcap")
            self._captures.append(path)
        return super().capture(place, path, length, **limits)

    def reset(self) -> None:
        """End programs, clear failures and remove circuits, so that the next test starts anew.

        Raises:
            MoefabricError: If the fabric can't be brought back to its first state.
        """
        self.end_programs()
        self.clear()
        for region, ocs in self.fabric.ocses.items():
            if ocs.control.address is None:
                self.ocs_clear(ocs=ocs.name)
            self.dark(region=region.name)

    def save_artefacts(self) -> Path:
        """Keep the state, events and logs of a failed test; return their folder."""
        self.artefacts.mkdir(parents=True, exist_ok=True)
        self._captures.clear()
        with suppress(MoefabricError, OSError):
            state = json.dumps(self.inspect(), indent=1)
            (self.artefacts / "inspect.json").write_text(state + "\n")
        with suppress(MoefabricError, OSError):
            lines = [json.dumps(event) + "\n" for event in self.events()]
            (self.artefacts / "events.jsonl").write_text("".join(lines))
        logs = self.run_directory.log_folder
        with suppress(OSError):
            shutil.copytree(logs, self.artefacts / "logs", dirs_exist_ok=True)
        return self.artefacts

    def drop_artefacts(self) -> None:
        """Remove captures that no failed test keeps."""
        for path in self._captures:
            path.unlink(missing_ok=True)
        self._captures.clear()
        with suppress(OSError):  # something is kept there, or the folder was never made
            self.artefacts.rmdir()
            self.artefacts.parent.rmdir()
