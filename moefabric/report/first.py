"""First all-to-alls: what each policy of theirs costs, measured and predicted, and how good a guess was, where there was one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich import box
from rich.table import Column, Table
from rich.text import Text

from moefabric.report import svg, words
from moefabric.report.reading import number

LEGEND = (
    "Exposed: from the end of attention to the last byte of the dispatch; right light: what it would need by the fluid model with the light it deserves, "
    "in time. Guess: busiest experts foreseen, and what its light cost."
)

_NAMES, _TOP, _ROW, _BAR, _ROOM = 150.0, 40.0, 38.0, 16.0, 150.0


@dataclass(frozen=True)
class First:
    """One fabric's first forward all-to-alls, medians in the model's seconds; what a run lacks is None.

    `exposed_s` is from when one could have started to its last byte, `waited_s` the part before its first. `ideal_s` is what the right light, in time,
    would have needed by the fluid model. `hits`, `unchanged` and `random` are parts of the busiest `k` experts foreseen, taken from the layer before,
    and drawn; `wrong_s` what a guess's light cost on average.
    """

    fabric: str
    policy: str
    exposed_s: float | None
    predicted_s: float | None
    waited_s: float | None
    predicted_wait_s: float | None
    ideal_s: float | None
    guessed: int = 0
    unguessed: int = 0
    k: int = 0
    hits: float | None = None
    unchanged: float | None = None
    random: float | None = None
    wrong_s: float | None = None

    @property
    def error(self) -> float | None:
        """Measured over predicted, less one."""
        return self.exposed_s / self.predicted_s - 1 if self.exposed_s and self.predicted_s else None

    @property
    def foreseen(self) -> str:
        """How good the guesses were, in words; empty where nobody guessed."""
        if self.hits is None:
            return ""
        hits, unchanged, random = (words.share(part) for part in (self.hits, self.unchanged, self.random))
        return f"{hits} of the {self.k} busiest experts (layer before: {unchanged}, at random: {random})"

    @property
    def guesses(self) -> str:
        """How many were guessed."""
        return f"{self.guessed} of {self.guessed + self.unguessed}" if self.guessed + self.unguessed else ""


def firsts(run: Mapping[str, Any]) -> list[First]:
    """Every fabric's, where some do otherwise than to wait; else none, for then there is nothing to compare."""
    read = [_first(row) for row in run.get("results") or () if isinstance(row, Mapping)]
    shown = [first for first in read if first is not None]
    return shown if any(first.policy not in ("block", words.NOTHING) for first in shown) else []


def _first(row: Mapping[str, Any]) -> First | None:
    said = row.get("first_all_to_all")
    if not isinstance(said, Mapping) or number(said.get("exposed_s")) is None:
        return None
    light = bool(row.get("reconfigurations"))
    foresight = said.get("foresight")
    foresight = foresight if isinstance(foresight, Mapping) else {}
    figures = {key: number(said.get(key)) for key in ("exposed_s", "waited_s", "predicted_wait_s", "ideal_s")}
    return First(
        fabric=words.printable(row.get("fabric", "unnamed")),
        policy=words.printable(said.get("policy") or "block") if light else words.NOTHING,
        predicted_s=number(said.get("predicted_exposed_s")),
        guessed=int(number(foresight.get("guessed")) or 0),
        unguessed=int(number(foresight.get("unguessed")) or 0),
        k=int(number(foresight.get("top_k")) or 0),
        hits=number(foresight.get("top_k_hits")),
        unchanged=number(foresight.get("unchanged_hits")),
        random=number(foresight.get("random_hits")),
        wrong_s=number(foresight.get("wrong_guess_s")),
        **figures,
    )


def terminal(shown: Sequence[First]) -> Table:
    """As a table for the terminal."""
    right = [Column(name, justify="right") for name in ("exposed", "error", "waited", "right light")]
    drawn = Table(
        Column("first"), Column("policy"), *right, Column("guess"),
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    for each in shown:
        cost = "" if each.wrong_s is None else f"{words.share(each.hits)}, +{words.seconds(each.wrong_s)}"
        drawn.add_row(
            Text(each.fabric, style="bold"), Text(each.policy), _over(each.exposed_s, each.predicted_s),
            words.error(each.error), _over(each.waited_s, each.predicted_wait_s), words.seconds(each.ideal_s), cost,
        )  # fmt: skip
    return drawn


def _over(above: float | None, below: float | None) -> Text:
    return Text.assemble(words.seconds(above), "\n", (words.seconds(below), "dim"))


def picture(shown: Sequence[First]) -> Markup:
    """A bar a fabric: waiting, then sending; a stroke where the prediction ends. Empty where there is none."""
    if not shown:
        return Markup()
    longest = max(max(each.exposed_s or 0.0, each.predicted_s or 0.0) for each in shown) or 1.0
    across = svg.Scale(0.0, longest, _NAMES, svg.WIDTH - _ROOM)
    legend = [("k-reconfiguration", "waiting for light"), ("k-dispatch", "dispatch"), ("target", "predicted")]
    drawn = [svg.legend(_NAMES, 14, legend)]
    for k, each in enumerate(shown):
        drawn += _bar(each, across, _TOP + k * _ROW)
    return svg.picture(svg.WIDTH, _TOP + len(shown) * _ROW, "Exposed time of the first all-to-alls", drawn)


def _bar(each: First, across: svg.Scale, y: float) -> list[Markup]:
    waited, exposed = each.waited_s or 0.0, each.exposed_s or 0.0
    middle, end = across(min(waited, exposed)), across(exposed)
    said = words.seconds(each.exposed_s)
    if each.error is not None:
        said += f", {words.error(each.error)}"
    drawn = [
        svg.label(_NAMES - 16, y + 9, each.fabric, "strong", "end"),
        svg.label(_NAMES - 16, y + 24, each.policy, "small", "end"),
        svg.rect(across.start, y, middle - across.start, _BAR, "k-reconfiguration", title=f"waited: {words.seconds(waited)}"),
        svg.rect(middle, y, end - middle, _BAR, "k-dispatch", title=f"sent for {words.seconds(exposed - waited)}"),
        svg.label(max(end, across(each.predicted_s or 0.0)) + 8, y + 13, said, "figure"),
    ]  # fmt: skip
    if each.predicted_s is not None:
        title = f"predicted: {words.seconds(each.predicted_s)}"
        drawn.append(svg.rect(across(each.predicted_s) - 1.25, y - 4, 2.5, _BAR + 8, "target", title=title))
    return drawn
