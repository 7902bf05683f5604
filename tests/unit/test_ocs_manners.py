"""Manners: what a profile file says of TL1 and RESTCONF, and what is wrong with it."""

import json
from pathlib import Path

import pytest

from emulator.ocs.build import Build, built, facts_of
from moefabric.errors import SpecError
from moefabric.ocs_manners import ACCOUNTS, CODES, Account, RestconfManners, Tl1Manners
from moefabric.ocs_profile import Profile
from moefabric.spec.ocs_profile import profile

WRITTEN = """
users: [{name: boss, password: secret}, {name: guest, group: view}]
tl1: {login: false, slow_s: 0, codes: {denied: SARB}}
restconf: {root: /restconf, revision: 2016-04-22, post_kept_s: 5}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_a_profile_file_says_how_its_switch_speaks(tmp_path: Path) -> None:
    mine = profile(written(tmp_path, WRITTEN.replace("2016-04-22", '"2016-04-22"')))
    assert mine.users == (Account("boss", "secret"), Account("guest", "", "view"))
    assert mine.tl1 == Tl1Manners(login=False, slow_s=0, codes={**CODES, "denied": "SARB"})
    assert mine.restconf == RestconfManners("/restconf", "2016-04-22", post_kept_s=5)


def test_without_a_word_of_them_they_are_the_default(tmp_path: Path) -> None:
    mine = profile(written(tmp_path, "vendor: Acme\n"))
    assert (mine.users, mine.tl1, mine.restconf) == (ACCOUNTS, Tl1Manners(), RestconfManners())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("tl1: {codes: {denied: no}}", "tl1.codes", id="code"),
        pytest.param("tl1: {codes: {weather: SROF}}", "tl1.codes", id="kind"),
        pytest.param("tl1: {outstanding: 0}", "tl1.outstanding", id="outstanding"),
        pytest.param("restconf: {root: api}", "restconf.root", id="root"),
        pytest.param("users: [{name: '@'}]", "users.0.name", id="name"),
        pytest.param("users: [{name: a, group: king}]", "users.0.group", id="group"),
    ],
)
def test_what_is_wrong_with_them_is_told_in_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SpecError, match=place):
        profile(written(tmp_path, text))


def test_they_go_over_a_wire_and_come_back() -> None:
    build = Build(
        Profile(
            users=(Account("a", "b", "user"),), tl1=Tl1Manners(prompt="<"), restconf=RestconfManners("/x")
        )
    )
    assert built(json.loads(json.dumps(facts_of(build)))) == build
