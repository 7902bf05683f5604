"""TL1 commands for who may log in, and who does. Codes and texts after public tests of Polatis switches."""

from collections.abc import Callable
from typing import cast

from emulator.ocs.tl1.done import Caller, Done
from emulator.ocs.tl1.parameters import positional
from emulator.ocs.tl1.words import Command, DeniedError
from emulator.ocs.users import UserError, Wrong
from moefabric.ocs_manners import Account, Group

GROUPS = ("admin", "user", "view")


def activate(caller: Caller, command: Command) -> Done:
    """`ACT-USER::root:c::root;`: log in; as another user, too."""
    name = _name(command)
    if command.block(1) is None:
        password = ""
    else:
        (password,) = positional(command, 1, 1, 1)
    if not caller.store.users.admits(name, password):
        raise DeniedError("PICC", "Permission denied")
    if caller.user == name:
        return Done(remark="Already logged in")
    caller.log_in(name)
    return Done()


def cancel(caller: Caller, command: Command) -> Done:
    """`CANC-USER::root:c:;`: log out; nobody else."""
    if _name(command) != caller.user:
        raise DeniedError("PICC", "Permission denied")
    caller.log_out()
    return Done()


def enter(caller: Caller, command: Command) -> Done:
    """`ENT-USER-SECU::name:c::password,,admin;`: let somebody in from now on, as a user if nothing else is said."""
    password, _, group = positional(command, 1, 0, 3)
    _do(lambda: caller.store.users.add(Account(_name(command), password, _group(group or "user"))))
    return Done()


def edit(caller: Caller, command: Command) -> Done:
    """`ED-USER-SECU::name:c::new name,password,,group;`: a password that is left out is none from then on."""
    name = _name(command)
    new, password, _, group = positional(command, 1, 0, 4)
    known = caller.store.users.get(name)
    kept = _group(group) if group else known.group if known else "view"
    _do(lambda: caller.store.users.change(name, Account(new or name, password, kept)))
    return Done()


def change_password(caller: Caller, command: Command) -> Done:
    """`ED-SECU-PID::name:c::old,new;`: one's own, or as an admin anybody's."""
    name = _name(command)
    old, new = positional(command, 1, 1, 2)
    users = caller.store.users
    allowed = caller.user == name or users.group(caller.user or "") == "admin"
    account = users.get(name)
    if account is None or not allowed or not users.admits(name, old):
        raise DeniedError("PICC", "Permission denied")
    _do(lambda: users.change(name, Account(name, new, account.group)))
    return Done()


def delete(caller: Caller, command: Command) -> Done:
    """`DLT-USER-SECU::name:c:;`."""
    if caller.store.users.group(caller.user or "") != "admin":
        raise DeniedError("PICC", "User not in the admin group")
    _do(lambda: caller.store.users.remove(_name(command)))
    return Done()


def retrieve_all(caller: Caller, command: Command) -> Done:
    """`RTRV-USER-SECU:::c:;`, or of one user: `name,,ADMIN` for each, without quotes."""
    users = caller.store.users
    if users.group(caller.user or "") != "admin":
        raise DeniedError("SRCN", "User not in the admin group")
    name = command.aid.plain
    found = [one for one in users if name in ("", one.name)]
    if not found:
        raise DeniedError("IDNV", Wrong.ABSENT.value)
    return Done(tuple(f"{one.name},,{one.group.upper()}" for one in found))


def retrieve_own(caller: Caller, _command: Command) -> Done:
    """`RTRV-USER:::c:;`: who one is."""
    name = caller.user or ""
    return Done((f"{name},,{caller.store.users.group(name).upper()}",))


def _name(command: Command) -> str:
    if not command.aid.plain:
        raise DeniedError("IIAC", "Too few parameters (0/1)")
    return command.aid.plain


def _group(written: str) -> Group:
    if written.lower() not in GROUPS:
        raise DeniedError("IPNV", "Invalid user access privilege")
    return cast("Group", written.lower())


def _do(change: Callable[[], None]) -> None:
    try:
        change()
    except UserError as wrong:
        known = wrong.why in (Wrong.EXISTS, Wrong.ABSENT)
        raise DeniedError("IDNV" if known else "PICC", wrong.why.value) from wrong
