"""How a switch speaks TL1 and RESTCONF, and who may log in, as the user writes it in a profile."""

from typing import Literal

from pydantic import Field, field_validator

from moefabric.ocs_manners import CODES, Account, RestconfManners, Tl1Manners
from moefabric.spec.part import Part


class AccountSpec(Part):
    """Somebody who may log in (see `Account`)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$")
    password: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,128}$")
    group: Literal["admin", "user", "view"] = "admin"

    def made(self) -> Account:
        """The value."""
        return Account(self.name, self.password, self.group)


class Tl1Spec(Part):
    """How a switch speaks TL1 (see `Tl1Manners`)."""

    login: bool = True
    completes: Literal["settled", "accepted"] = "settled"
    slow_s: float = Field(default=Tl1Manners.slow_s, ge=0)
    slow_ack: Literal["IP", "PF", "OK", "NA"] = "IP"
    outstanding: int = Field(default=Tl1Manners.outstanding, ge=1, le=256)
    prompt: str = Field(default="", max_length=16)
    messages: bool = True
    timeout_unit_s: int = Field(default=Tl1Manners.timeout_unit_s, ge=1)
    timed_out: Literal["log out", "hang up"] = "log out"
    label_chars: int = Field(default=Tl1Manners.label_chars, ge=1, le=128)
    codes: dict[str, str] = Field(default_factory=dict)

    @field_validator("codes")
    @classmethod
    def _known(cls, codes: dict[str, str]) -> dict[str, str]:
        for kind, code in codes.items():
            if kind not in CODES:
                raise ValueError(f"{kind!r} is none of {', '.join(CODES)}")
            if not (len(code) == 4 and code.isascii() and code.isalpha() and code.isupper()):
                raise ValueError(f"{code!r}: a code has four capital letters")
        return codes

    def made(self) -> Tl1Manners:
        """The value."""
        return Tl1Manners(**self.model_dump())


class RestconfSpec(Part):
    """How a switch speaks RESTCONF (see `RestconfManners`)."""

    root: str = Field(default=RestconfManners.root, pattern=r"^(/[A-Za-z0-9_.-]+)+$")
    revision: str = Field(default=RestconfManners.revision, pattern=r"^\d{4}-\d{2}-\d{2}$")
    completes: Literal["settled", "accepted"] = "settled"
    post_kept_s: float | None = Field(default=None, gt=0)
    idle_s: float = Field(default=RestconfManners.idle_s, ge=0)
    whole_lists: bool = True

    def made(self) -> RestconfManners:
        """The value."""
        return RestconfManners(**self.model_dump())


DEFAULT_ACCOUNTS = (AccountSpec(name="admin", password="root"), AccountSpec(name="root", password="root"))  # noqa: S106 - a device's own
