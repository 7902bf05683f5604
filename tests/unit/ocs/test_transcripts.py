"""Transcripts of every command of every protocol, to the byte."""

from pathlib import Path

import pytest

from tests.support.ocs_lab import TRANSCRIPTS, Transcript, transcripts


@pytest.mark.parametrize(
    "path", transcripts(), ids=lambda path: str(path.relative_to(TRANSCRIPTS))[:-4]
)
def test_switch_replays_transcript(path: Path) -> None:
    text = path.read_text()
    assert Transcript(text).play() == text
