"""Sources of Debian 13's Compose and of the base image's packages: the machine's apt sources."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY

SCRIPT: dict[str, Any] = runpy.run_path(str(REPOSITORY / "packaging" / "debian_source.py"))

DEB822 = """\
Types: deb deb-src
URIs: http://mirror.example/debian
# a comment
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/debian.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
VENDOR = "Types: deb\nURIs: http://vendor.example/apt\nSuites: stable\nComponents: edge\n"


def answer(etc: Path, option: str, suite: str) -> str:
    text: str = SCRIPT["answer"](option, suite, list(SCRIPT["apt_sources"](etc)), "bookworm")
    return text


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_other_suite_uses_same_mirror_and_keys(etc: Path) -> None:
    (etc / "sources.list.d" / "a-vendor.sources").write_text(VENDOR)
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert answer(etc, "", "trixie") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\n"
        "Signed-By: /keys/debian.gpg\n"
    )


@pytest.mark.parametrize(
    ("line", "stanza"),
    [
        pytest.param(
            "deb http://m.example/debian bookworm main non-free # mine",
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: main\n",
            id="plain",
        ),
        pytest.param(
            "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian bookworm main",
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: main\n"
            "Signed-By: /k.gpg\n",
            id="options",
        ),
        pytest.param("# deb http://m.example/debian bookworm main", "", id="off"),
        pytest.param("deb-src http://m.example/debian bookworm main", "", id="sources-only"),
        pytest.param("deb http://m.example/debian sid main", "", id="another-release"),
    ],
)
def test_one_line_source_is_rewritten_for_other_suite(etc: Path, line: str, stanza: str) -> None:
    (etc / "sources.list").write_text(f"{line}\n")
    assert answer(etc, "", "trixie") == stanza


def test_inline_key_block_is_preserved(etc: Path) -> None:
    block = (
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n"
        " -----END PGP PUBLIC KEY BLOCK-----\n"
    )
    archive = "Types: deb\nURIs: http://m.example/debian\nSuites: bookworm\nComponents: main\n"
    (etc / "sources.list.d" / "debian.sources").write_text(archive + block)
    assert answer(etc, "", "trixie").splitlines()[4:] == [
        "Signed-By: ",
        " -----BEGIN PGP PUBLIC KEY BLOCK-----",
        " .",
        " abc=",
        " -----END PGP PUBLIC KEY BLOCK-----",
    ]


def test_disabled_source_is_ignored(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(
        f"Enabled: no\n{DEB822.split(chr(10) * 2, maxsplit=1)[0]}\n"
    )
    assert answer(etc, "", "trixie") == ""


def test_all_option_includes_updates_and_security(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    (etc / "sources.list.d" / "vendor.sources").write_text(VENDOR)
    stanzas = answer(etc, "--all", "bookworm")
    assert "Suites: bookworm bookworm-updates\n" in stanzas
    assert "Suites: bookworm-security\n" in stanzas
    assert "vendor" not in stanzas
    assert answer(etc, "--all", "trixie") == answer(etc, "", "trixie") != ""


def test_mirror_option_prints_address_only(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert answer(etc, "--mirror", "bookworm") == "http://mirror.example/debian\n"
