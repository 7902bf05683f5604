"""The releases on which packaging/setup works, and what it says elsewhere."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


def test_packages_of_a_list_are_installed_with_hashes() -> None:
    script = (REPOSITORY / "packaging/setup").read_text().replace("\\\n", "")
    lists = re.findall(r"(?m)^.* -r \S+", script)
    assert [line for line in lists if "--require-hashes" not in line] == []
    assert len(lists) == 5


@pytest.mark.parametrize(
    ("release", "remedy"),
    [
        ('ID=ubuntu\nPRETTY_NAME="Ubuntu 24.04 LTS"', "Ubuntu 24.04 LTS: .*sudo apt install bash "),
        ("ID=debian\nVERSION_ID=11", "use docker compose, or `pip install .`"),
    ],
)
def test_other_release_is_refused_with_what_to_do(
    tmp_path: Path, release: str, remedy: str
) -> None:
    file = tmp_path / "os-release"
    file.write_text(release)
    run = subprocess.run(
        [str(REPOSITORY / "packaging/setup"), "run"],
        env={**os.environ, "MOEFABRIC_OS_RELEASE": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert re.search(remedy, run.stderr), run.stderr


@pytest.mark.parametrize(
    ("state", "printed"),
    [
        ("linked=yes", "setup: ready; next: /v/bin/moefabric doctor\n"),
        ("linked=yes MAKELEVEL=1", ""),
        ("linked=", ""),
    ],
    ids=["alone", "in-make", "dependencies-only"],
)
def test_last_line_says_what_to_run_next(state: str, printed: str) -> None:
    """Targets of `make` go on by themselves."""
    lines = (REPOSITORY / "packaging/setup").read_text().splitlines()
    [say] = [line for line in lines if line.startswith("say()")]
    script = "\n".join(["set -euo pipefail", say, f"MAKELEVEL= venv=/v {state}", lines[-1]])
    assert subprocess.check_output(["bash", "-c", script], text=True) == printed
