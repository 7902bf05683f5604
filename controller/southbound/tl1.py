"""TL1 on TCP, as Polatis devices speak it: one session with a login, commands with a tag each, COMPLD once all light has settled.

A message ends with `;`, an acknowledgement with `<`, a part of a longer answer with `>`, each at the start of a line (Telcordia GR-831).
What the device says of itself (`A  12 REPT ...`) is passed over.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.southbound.crossconnects import CrossConnect, Moves
from controller.southbound.line import Line, LostError, Patience
from moefabric.errors import ControlError

FACTORY: Final = ("root", "root")
"""User and password that a Polatis leaves the factory with."""

SLOW_S: Final = 2.0
"""A command that takes longer is acknowledged first (GR-831)."""

_END = re.compile(rb"(?:^|\n)[;<>]")
_ANSWER = re.compile(r"^M +(\S+) +(COMPLD|DENY|PRTL|DELAY|RTRV)\s*$", re.MULTILINE)
_IN_PROGRESS = re.compile(r"^(IP|PF|OK) +(\S+)", re.MULTILINE)
_PATCH = re.compile(r'"(\d+),(\d+)"')
_ACCEPTED: Final = frozenset({"IP", "PF", "OK", "DELAY"})
"""Acknowledged: in progress, printout follows, all right (GR-831); or put off."""
_DONE: Final = "COMPLD"


@dataclass(frozen=True)
class Answer:
    """What a message says: of which command, how that went, and the lines below."""

    tag: str
    verdict: str
    text: str = ""

    @property
    def words(self) -> str:
        """All of it in one line, as errors tell it."""
        return " ".join([self.verdict, *self.text.split()])


def parsed(message: str) -> Answer | None:
    """The answer that a message is; None where it is none: what a device says of itself, or nothing known."""
    if found := _ANSWER.search(message):
        return Answer(found[1], found[2], message[found.end() :].rstrip(";<>").strip())
    if found := _IN_PROGRESS.search(message.strip()):
        return Answer(found[2], found[1])
    return None


def ports(listed: Iterable[int]) -> str:
    """Ports as TL1 lists them: `1&4&10`."""
    return "&".join(map(str, listed))


class Tl1Device:
    """A device that speaks TL1 at the other end of a line."""

    def __init__(self, line: Line, user: str | None = None, password: str | None = None) -> None:
        """Without user and password, those of the factory."""
        self._line, self.name = line, line.name
        self._user, self._password = user or FACTORY[0], FACTORY[1] if password is None else password
        self._tags = 0
        self._under_way: set[str] = set()
        """Tags of the commands that are accepted and not yet seen done."""
        self._heard: dict[str, Answer] = {}
        """What came of these while another answer was waited for."""

    def close(self) -> None:
        """Hang up."""
        self._line.close()
        self._forget()

    def joined(self) -> tuple[CrossConnect, ...]:
        """What `RTRV-PATCH` lists. LostError if it is denied, since a new session may be told."""
        tag = self._tell("RTRV-PATCH::")
        patience, text = Patience.of(self._line.timeout_s), ""
        while (answer := self._answer(tag, "RTRV-PATCH", patience)).verdict == "RTRV":
            text += answer.text
        if answer.verdict != _DONE:
            self.close()
            raise LostError(f"{self.name}: RTRV-PATCH: {answer.words}")
        return tuple(sorted((int(p), int(q)) for p, q in _PATCH.findall(text + answer.text)))

    def move(self, moves: Moves) -> str | None:
        """`DLT-PATCH`, then `ENT-PATCH`, sent together and done in this order; what the device has against one of them.

        Returns when both are COMPLD, which a device says when light has settled, or acknowledged (`IP`), which one says whose light takes longer.
        """
        told: list[tuple[str, str]] = []
        if moves.out:
            told.append((self._tell(f"DLT-PATCH::{ports(p for p, _ in moves.out)}"), "DLT-PATCH"))
        if moves.into:
            pairs = f"{ports(p for p, _ in moves.into)},{ports(q for _, q in moves.into)}"
            told.append((self._tell(f"ENT-PATCH::{pairs}"), "ENT-PATCH"))
        self._under_way.update(tag for tag, _ in told)
        patience, denied = Patience.of(self._line.timeout_s + SLOW_S), list[str]()
        for tag, name in told:
            answer = self._answer(tag, name, patience)
            if answer.verdict in _ACCEPTED:
                continue
            self._under_way.discard(tag)
            if answer.verdict != _DONE:
                denied.append(f"{name}: {answer.words}")
        return "; ".join(denied) or None

    def settled(self, deadline_s: float) -> None:
        """Return when all that was accepted is COMPLD. ControlError after `deadline_s`, or where it is denied after all."""
        patience, failed = Patience.of(deadline_s), list[str]()
        for tag in sorted(self._under_way):
            while (answer := self._answer(tag, "the change", patience)).verdict in _ACCEPTED:
                pass
            self._under_way.discard(tag)
            if answer.verdict != _DONE:
                failed.append(answer.words)
        if failed:
            raise ControlError(f"{self.name}: {'; '.join(failed)}")

    def _tell(self, command: str) -> str:
        """Say a command, such as `ENT-PATCH::1,9`, logged in; the tag by which its answer is known."""
        if not self._line.is_open:
            self._forget()
            tag = self._say(f"ACT-USER::{self._user}", f":{self._password}")
            answer = self._answer(tag, "ACT-USER", Patience.of(self._line.timeout_s))
            if answer.verdict != _DONE:
                self.close()
                raise ControlError(f"{self.name}: no login as {self._user}: {answer.words}")
        return self._say(command, "")

    def _forget(self) -> None:
        self._under_way.clear()
        self._heard.clear()

    def _say(self, before: str, after: str) -> str:
        self._tags += 1
        tag = str(self._tags)
        self._line.send(f"{before}:{tag}:{after};\r\n".encode("ascii"))
        return tag

    def _answer(self, tag: str, what: str, patience: Patience) -> Answer:
        """The next that is said to this command. LostError where nothing is, upon which nothing is under way any more that one can hear of."""
        while tag not in self._heard:
            try:
                message = self._line.hear(_END, what, patience)
            except LostError:
                self._forget()
                raise
            answer = parsed(message.decode("ascii", "replace").replace("\r", ""))
            if answer and (answer.tag == tag or answer.tag in self._under_way):
                self._heard[answer.tag] = answer
        return self._heard.pop(tag)
