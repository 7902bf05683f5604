"""Who may log in to an optical switch, and who is: the same for all of its front-ends."""

import hmac
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from moefabric.ocs_manners import Account, Group

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
PASSWORD = re.compile(r"[A-Za-z0-9_.-]{0,128}")
MOST = 64


class Wrong(Enum):
    """Why a change of users is refused."""

    EXISTS = "User exists"
    ABSENT = "User does not exist"
    SPELLING = "Permission denied"
    TOO_MANY = "Too many users"
    LAST = "An admin has to remain"


class UserError(Exception):
    """A change of users that is not made."""

    def __init__(self, why: Wrong) -> None:
        self.why = why
        super().__init__(why.value)


@dataclass(frozen=True)
class LogIn:
    """Somebody who is logged in, by way of a front-end."""

    number: int
    user: str
    protocol: str
    peer: str
    end: Callable[[], None]
    """Hangs up on them."""


class Users:
    """The accounts of a switch, and who is logged in."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._accounts = {account.name: account for account in accounts}
        self._serial = itertools.count(1)
        self._log_ins: dict[int, LogIn] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called after each change of accounts."""

    def __iter__(self) -> Iterator[Account]:
        return iter(sorted(self._accounts.values(), key=lambda account: account.name))

    def get(self, name: str) -> Account | None:
        """The account of that name."""
        return self._accounts.get(name)

    def group(self, name: str) -> Group:
        """What that user may do; nothing but read for one who is gone."""
        account = self._accounts.get(name)
        return account.group if account else "view"

    def admits(self, name: str, password: str) -> bool:
        """Whether that name goes with that password."""
        account = self._accounts.get(name)
        wanted = account.password if account else ""
        return hmac.compare_digest(wanted.encode(), password.encode()) and account is not None

    def add(self, account: Account) -> None:
        """Let somebody else in from now on. UserError if that can't be."""
        if account.name in self._accounts:
            raise UserError(Wrong.EXISTS)
        if len(self._accounts) >= MOST:
            raise UserError(Wrong.TOO_MANY)
        self._put(account)

    def change(self, name: str, account: Account) -> None:
        """Have an account replaced, under a new name perhaps. UserError if that can't be."""
        if name not in self._accounts:
            raise UserError(Wrong.ABSENT)
        if account.name != name and account.name in self._accounts:
            raise UserError(Wrong.EXISTS)
        self._keep_an_admin(name, account.group)
        _check(account)
        del self._accounts[name]
        self._put(account)
        for log_in in [one for one in self._log_ins.values() if one.user == name]:
            self._log_ins[log_in.number] = replace(log_in, user=account.name)

    def remove(self, name: str) -> None:
        """Let somebody in no more. UserError if that can't be."""
        if name not in self._accounts:
            raise UserError(Wrong.ABSENT)
        self._keep_an_admin(name, "view")
        del self._accounts[name]
        self.changed()

    @property
    def log_ins(self) -> Mapping[int, LogIn]:
        """Who is logged in, by number of session."""
        return self._log_ins

    def entered(self, user: str, protocol: str, peer: str, end: Callable[[], None]) -> int:
        """Somebody has logged in. The number of their session."""
        number = next(self._serial)
        self._log_ins[number] = LogIn(number, user, protocol, peer, end)
        return number

    def left(self, number: int) -> None:
        """They are gone. Twice is no fault."""
        self._log_ins.pop(number, None)

    def _put(self, account: Account) -> None:
        _check(account)
        self._accounts[account.name] = account
        self.changed()

    def _keep_an_admin(self, name: str, group: Group) -> None:
        others = [one for one in self._accounts.values() if one.name != name and one.group == "admin"]
        if group != "admin" and not others:
            raise UserError(Wrong.LAST)


def _check(account: Account) -> None:
    if not NAME.fullmatch(account.name) or not PASSWORD.fullmatch(account.password):
        raise UserError(Wrong.SPELLING)
