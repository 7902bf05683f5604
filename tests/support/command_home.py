"""The command in a network namespace and a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.namespaces import Island, must
from tests.support.paths import REPOSITORY

MOEFABRIC = shutil.which("moefabric", path=str(REPOSITORY / ".venv/bin")) or ""
NEEDS_COMMAND = [
    pytest.mark.kernel,
    pytest.mark.skipif(not MOEFABRIC, reason="needs the command: packaging/setup run"),
]
NEEDS = [
    *NEEDS_COMMAND,
    pytest.mark.ovs,
    pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3: apt install iperf3"),
]
FABRIC = """
fabric: {name}
gpus_per_server: 8
nic_rate: 100Gb/s
nics: {{optical: 2, electrical: 1}}
regions:
  - servers: 2
    ocs: {{settle: 25ms}}
scale: {{bytes: 2000}}
"""
EXPERIMENT = """
experiment: small
model: {{name: mixtral-8x7b, layers: 1}}
training: {{ep: 8, tp: 4, sequence: 4096, micro_batch: 8, iterations: {iterations}}}
gating: {{matrix: {repository}/examples/data/gating-8x8.json}}
wiring:
  nic_rate: 100Gb/s
  regions:
    - servers: 4
      ocs: {{settle: 25ms}}
fabrics:
  - {{name: eps, optical: 0, electrical: 4, policy: eps}}
  - {{name: mixnet, optical: 3, electrical: 1, policy: mixnet}}
scale: {{bytes: 500, dilation: 4}}
"""


@dataclass
class Home:
    """A namespace in which the command runs, and a folder for its files."""

    island: Island
    folder: Path

    def argv(self, *words: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.island.netns('home')}", "--", MOEFABRIC, *words]

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        run = str(self.folder / "run")
        return {**os.environ, "MOEFABRIC_RUN_DIR": run, "COLUMNS": "120", "PYTHONPATH": path}

    def call(self, *words: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(*words),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def must(self, *words: str, timeout_s: float = 60) -> str:
        result = self.call(*words, timeout_s=timeout_s)
        assert result.returncode == 0, f"{' '.join(words)}: {result.returncode}, {result.stderr}"
        return result.stdout

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def remains(self) -> list[str]:
        """Return the links and files of fabrics that still exist."""
        links = must("ip", "-n", self.island.netns("home"), "-o", "link").splitlines()
        folders = [str(path) for path in (self.folder / "run").glob("[!.]*/*")]
        return [line for line in links if "mf" in line.split(":")[1]] + folders


@contextmanager
def new_home() -> Iterator[Home]:
    with ExitStack() as undo:
        island = Island(["home", "away"], undo)
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mf")))
        yield Home(island, folder)
