"""Accounts and log-ins of an optical switch, shared by its front ends."""

import hmac
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from moefabric.core.ocs import PASSWORD, USER_NAME, Group, UserAccount

MAX_USERS = 64


class UserRefusal(Enum):
    """Reasons for refusing a change of accounts."""

    EXISTS = "User exists"
    ABSENT = "User does not exist"
    SPELLING = "Permission denied"
    TOO_MANY = "Too many users"
    LAST_ADMIN = "An admin has to remain"


class UserError(Exception):
    """A change of accounts is refused."""

    def __init__(self, reason: UserRefusal) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(frozen=True)
class LogIn:
    """A session of a logged-in user."""

    user: str
    protocol: str
    peer: str
    close: Callable[[], None]
    """Closes the connection of the session."""


class Users:
    """Accounts of a switch, and its log-ins. Refused changes raise UserError."""

    def __init__(self, accounts: Iterable[UserAccount] | None) -> None:
        """Start with these accounts; None stands for the factory accounts of the dialects."""
        self._are_factory_accounts = accounts is None
        self._accounts = {account.name: account for account in accounts or ()}
        self._numbers = itertools.count(1)
        self.log_ins: dict[int, LogIn] = {}
        """Log-ins by session number."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of accounts."""

    def __iter__(self) -> Iterator[UserAccount]:
        return iter(sorted(self._accounts.values(), key=lambda account: account.name))

    def get(self, name: str) -> UserAccount | None:
        """Return the account with this name, or None."""
        return self._accounts.get(name)

    def group(self, name: str) -> Group:
        """Return the group of a user; a removed user is in the read-only group `view`."""
        account = self._accounts.get(name)
        return account.group if account else "view"

    def accepts(self, name: str, password: str) -> bool:
        """Return whether the password is correct for the user."""
        account = self._accounts.get(name)
        expected = account.password if account else ""
        return hmac.compare_digest(expected.encode(), password.encode()) and account is not None

    def add(self, account: UserAccount) -> None:
        """Add an account."""
        if account.name in self._accounts:
            raise UserError(UserRefusal.EXISTS)
        if len(self._accounts) >= MAX_USERS:
            raise UserError(UserRefusal.TOO_MANY)
        self._store(account)

    def add_factory_accounts(self, accounts: Iterable[UserAccount]) -> None:
        """Add the accounts of a new switch's dialect, unless its accounts are known."""
        if self._are_factory_accounts:
            self._accounts |= {account.name: account for account in accounts}

    def change(self, name: str, account: UserAccount) -> None:
        """Replace an account; its name may change."""
        if name not in self._accounts:
            raise UserError(UserRefusal.ABSENT)
        if account.name != name and account.name in self._accounts:
            raise UserError(UserRefusal.EXISTS)
        self._check_admin_remains(name, account.group)
        self._store(account, replaces=name)
        for number, log_in in self.log_ins.items():
            if log_in.user == name:
                self.log_ins[number] = replace(log_in, user=account.name)

    def remove(self, name: str) -> None:
        """Remove an account."""
        if name not in self._accounts:
            raise UserError(UserRefusal.ABSENT)
        self._check_admin_remains(name, "view")
        del self._accounts[name]
        self.on_change()

    def log_in(self, user: str, protocol: str, peer: str, close: Callable[[], None]) -> int:
        """Register a log-in, and return the number of its session."""
        number = next(self._numbers)
        self.log_ins[number] = LogIn(user, protocol, peer, close)
        return number

    def user_of(self, number: int) -> str | None:
        """Return the user of a session, if it is logged in."""
        log_in = self.log_ins.get(number)
        return log_in.user if log_in else None

    def log_out(self, number: int) -> None:
        """Remove a log-in; unknown numbers are ignored."""
        self.log_ins.pop(number, None)

    def _store(self, account: UserAccount, replaces: str = "") -> None:
        rules = (USER_NAME, account.name), (PASSWORD, account.password)
        if not all(re.fullmatch(rule.pattern, text) for rule, text in rules):
            raise UserError(UserRefusal.SPELLING)
        self._accounts.pop(replaces, None)
        self._accounts[account.name] = account
        self.on_change()

    def _check_admin_remains(self, name: str, group: Group) -> None:
        others = (account for account in self._accounts.values() if account.name != name)
        if group != "admin" and all(account.group != "admin" for account in others):
            raise UserError(UserRefusal.LAST_ADMIN)
