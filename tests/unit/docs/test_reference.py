"""The pages of commands and keys are those that `make reference` writes, and in the navigation."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.reference import PAGES
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("page", PAGES)
def test_page_is_current(page: str) -> None:
    assert PAGES[page]() == (REPOSITORY / "docs" / page).read_text(), "run `make reference`"


def test_module_writes_the_pages(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.reference", str(tmp_path)]
    subprocess.run(words, check=True, cwd=REPOSITORY)
    assert {file.name for file in tmp_path.iterdir()} == PAGES.keys()


def test_reference_has_every_command_and_option_once() -> None:
    text = PAGES["commands.md"]()
    assert text.count("\n### moefabric run\n") == 1
    assert text.count("#### moefabric policy check\n") == 1
    assert "| `--set KEY=VALUE` | Change a key of the file. |" in text
    assert "    moefabric inspect lab\n" in text


def test_search_of_the_pages_needs_no_server_and_no_other_host() -> None:
    site = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    assert {"search", "offline"} <= {
        plugin for plugin in site["plugins"] if isinstance(plugin, str)
    }
    (script,) = site["extra"]["polyfills"]
    assert "iframe-worker" in script, "else the plug-in adds one of another host"
    digest = hashlib.sha256((REPOSITORY / "docs" / script).read_bytes()).hexdigest()
    assert digest in (REPOSITORY / "docs/vendor/PROVENANCE.txt").read_text()
    assert "http" not in (REPOSITORY / "docs" / script).read_text()
