"""Where Debian 13's Compose and the base image's packages come from: this machine's own apt sources."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "packaging" / "debian_source.py"))

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


def said(etc: Path, question: str, suite: str) -> str:
    text: str = SCRIPT["answer"](question, suite, list(SCRIPT["apt_sources"](etc)), "bookworm")
    return text


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_another_suite_comes_from_the_same_mirror_with_the_same_keys(etc: Path) -> None:
    (etc / "sources.list.d" / "a-vendor.sources").write_text(VENDOR)
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert said(etc, "", "trixie") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\nSigned-By: /keys/debian.gpg\n"
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
            "Types: deb\nURIs: http://m.example/debian\nSuites: trixie\nComponents: main\nSigned-By: /k.gpg\n",
            id="options",
        ),
        pytest.param("# deb http://m.example/debian bookworm main", "", id="off"),
        pytest.param("deb-src http://m.example/debian bookworm main", "", id="sources-only"),
        pytest.param("deb http://m.example/debian sid main", "", id="another-release"),
    ],
)
def test_a_one_line_source_is_told_for_another_suite(etc: Path, line: str, stanza: str) -> None:
    (etc / "sources.list").write_text(f"{line}\n")
    assert said(etc, "", "trixie") == stanza


def test_a_key_block_inside_a_source_stays_whole(etc: Path) -> None:
    block = (
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n -----END PGP PUBLIC KEY BLOCK-----\n"
    )
    archive = "Types: deb\nURIs: http://m.example/debian\nSuites: bookworm\nComponents: main\n"
    (etc / "sources.list.d" / "debian.sources").write_text(archive + block)
    assert said(etc, "", "trixie").splitlines()[4:] == [
        "Signed-By: ",
        " -----BEGIN PGP PUBLIC KEY BLOCK-----",
        " .",
        " abc=",
        " -----END PGP PUBLIC KEY BLOCK-----",
    ]


def test_a_source_switched_off_is_not_used(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(
        f"Enabled: no\n{DEB822.split(chr(10) * 2, maxsplit=1)[0]}\n"
    )
    assert said(etc, "", "trixie") == ""


def test_the_base_image_gets_updates_and_security_too(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    (etc / "sources.list.d" / "vendor.sources").write_text(VENDOR)
    told = said(etc, "--all", "bookworm")
    assert "Suites: bookworm bookworm-updates\n" in told
    assert "Suites: bookworm-security\n" in told
    assert "vendor" not in told


def test_the_mirror_is_an_address_alone(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert said(etc, "--mirror", "bookworm") == "http://mirror.example/debian\n"
