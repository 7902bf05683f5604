"""Transcripts: every command of every language that a switch speaks, to the byte."""

from pathlib import Path

import pytest

from tests.ocs_lab import GOLDEN, Transcript, transcripts


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: str(path.relative_to(GOLDEN))[:-4])
def test_a_switch_says_what_the_transcript_has(path: Path) -> None:
    written = path.read_text()
    assert Transcript(written).played() == written
