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
