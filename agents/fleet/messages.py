"""Messages of agents: their shapes are checked before anything is read from them."""

import json
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Message = dict[str, Any]
"""A JSON object: the fields of a request, a reply or an event."""

_Times = Annotated[list[int], Field(min_length=2, max_length=2)]
_SHOWN: Final = 80  # bytes of a malformed line


class _Shape(BaseModel):
    """Fields that a kind of message needs; others may be there."""

    model_config = ConfigDict(strict=True)


class _Transfer(_Shape):
    moved: int
    first_ns: int | None
    last_ns: int | None
    ok: bool
    why: str
    corrupt: bool
    retransmits: int = 0
    acknowledged_ns: int | None = None


class _RankEnd(_Shape):
    rank: int
    ended_ns: int


class _Done(_Shape):
    """The end of a collective, with its transfers, or of a program's run, with its ranks."""

    collective: int
    sends: list[_Transfer] = []
    receives: list[_Transfer] = []
    why: str = ""
    began_ns: int = 0
    ranks: list[_RankEnd] = []
    times: list[_Times] = []


class _RankState(_Shape):
    gpu: int
    alive: bool


class _Rank(_Shape):
    rank: int


class _RankLost(_Rank):
    why: str


class _OfExchange(_Rank):
    name: str
    group: list[int]
    number: int


class _Overdue(_OfExchange):
    seconds: float


class _Exchange(_OfExchange):
    sends: list[int]
    receives: list[int]
    dtype: str
    tokens: list[int] | None
    asked_ns: int


class _Reply(_Shape):
    id: int | None
    ok: bool
    error: str | None = None


EXCHANGE_EVENTS: Final = ("exchange", "overdue", "rank_joined", "rank_lost", "rank_left")
_SHAPES: Final[dict[str | None, type[_Shape]]] = {
    None: _Reply,
    "done": _Done,
    "rank": _RankState,
    "exchange": _Exchange,
    "overdue": _Overdue,
    "rank_joined": _Rank,
    "rank_left": _Rank,
    "rank_lost": _RankLost,
}


def parse_message(line: bytes) -> Message:
    """Return the message in a line; fields that no shape names are kept as they are.

    Raises:
        ValueError: if it isn't JSON, or a field that its kind needs is missing or wrong.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        text = line[:_SHOWN].decode(errors="replace")
        raise ValueError(f"it sent a line that is not JSON: {text}") from error
    event = message.get("event") if isinstance(message, dict) else False
    if event is not None and not isinstance(event, str):
        raise ValueError(f"it sent a malformed message: {line[:_SHOWN].decode(errors='replace')}")
    if event in _SHAPES:
        _check(message, _SHAPES[event])
    return dict(message)


def _check(message: Message, shape: type[_Shape]) -> None:
    """Raise ValueError, with the first wrong field, if a message doesn't have a shape."""
    try:
        shape.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"it sent a malformed message: {place}: {first['msg']}") from error
    if message.get("event") == "exchange":
        group = message["group"]
        sizes = {len(group), len(message["sends"]), len(message["receives"])}
        if message["rank"] not in group or len(sizes) > 1:
            raise ValueError("it sent a malformed message: the exchange does not fit its group")
    if message.get("ok") is False and "error" not in message:
        raise ValueError("it sent a malformed message: a refusal without a reason")
