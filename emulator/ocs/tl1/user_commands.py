"""TL1 commands for accounts and log-in. Codes and texts follow public tests of Polatis switches."""

from typing import cast

from moefabric.core.ocs import Group, UserAccount
from moefabric.emulator.ocs.tl1.front_end import RANKS, Result, Tl1Session
from moefabric.emulator.ocs.tl1.parameters import positional
from moefabric.emulator.ocs.tl1.syntax import Command, DeniedError
from moefabric.emulator.ocs.users import UserRefusal


def activate(session: Tl1Session, command: Command) -> Result | None:
    """`ACT-USER::root:c::root;`: logs in, or changes the user of a session."""
    name = _name(command)
    password = positional(command, 1, 1)[0] if len(command.blocks) > 1 else ""
    if not session.device.users.accepts(name, password):
        raise DeniedError("PICC", "Permission denied")
    if session.user == name:
        return Result(remark="Already logged in")
    session.log_in(name)
    return None


def cancel(session: Tl1Session, command: Command) -> None:
    """`CANC-USER::root:c:;`: logs out the session's own user."""
    if _name(command) != session.user:
        raise DeniedError("PICC", "Permission denied")
    session.log_out()


def enter(session: Tl1Session, command: Command) -> None:
    """`ENT-USER-SECU::name:c::password,,admin;`: adds an account; default group: user."""
    password, _, group = positional(command, 0, 3)
    account = UserAccount(_name(command), password, _group(group or "user"))
    session.device.users.add(account)


def edit(session: Tl1Session, command: Command) -> None:
    """`ED-USER-SECU::name:c::new name,password,,group;`: an omitted password becomes empty."""
    name = _name(command)
    new_name, password, _, group = positional(command, 0, 4)
    new_group = _group(group) if group else session.device.users.group(name)
    new = UserAccount(new_name or name, password, new_group)
    session.device.users.change(name, new)


def change_password(session: Tl1Session, command: Command) -> None:
    """`ED-SECU-PID::name:c::old,new;`: the user's own password; admins: any user's."""
    name = _name(command)
    old, new = positional(command, 1, 2)
    users = session.device.users
    allowed = session.user == name or session.group == "admin"
    account = users.get(name)
    if account is None or not allowed or not users.accepts(name, old):
        raise DeniedError("PICC", "Permission denied")
    users.change(name, UserAccount(name, new, account.group))


def delete(session: Tl1Session, command: Command) -> None:
    """`DLT-USER-SECU::name:c:;`: deletes an account."""
    if session.group != "admin":
        raise DeniedError("PICC", "User not in the admin group")
    session.device.users.remove(_name(command))


def retrieve_all(session: Tl1Session, command: Command) -> Result:
    """`RTRV-USER-SECU:::c:;`, for all or one user: a line `name,,ADMIN` each, unquoted."""
    users, name = session.device.users, command.aid.value
    if session.group != "admin":
        raise DeniedError("SRCN", "User not in the admin group")
    accounts = [account for account in users if name in ("", account.name)]
    if not accounts:
        raise DeniedError("IDNV", UserRefusal.ABSENT.value)
    lines = [f"{account.name},,{account.group.upper()}" for account in accounts]
    return Result(lines, quoted=False)


def retrieve_own(session: Tl1Session, _command: Command) -> Result:
    """`RTRV-USER:::c:;`: the user who is logged in."""
    return Result([f"{session.user or ''},,{session.group.upper()}"], quoted=False)


def _name(command: Command) -> str:
    if not command.aid.value:
        raise DeniedError("IIAC", "Too few parameters (0/1)")
    return command.aid.value


def _group(word: str) -> Group:
    if word.lower() not in RANKS:
        raise DeniedError("IPNV", "Invalid user access privilege")
    return cast("Group", word.lower())
