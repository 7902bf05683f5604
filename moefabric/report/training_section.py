"""Section of a run's page about a program that trained: losses, experts, light."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from markupsafe import Markup

from moefabric.report import run_tables
from moefabric.report.curves import exposed_picture, loss_picture
from moefabric.report.formatting import counted, printable
from moefabric.report.heat_maps import loads_picture
from moefabric.report.summary import FabricSummary
from moefabric.report.tables import Table
from moefabric.report.timelines import light_over_time
from moefabric.results.parts import TrainingResult


@dataclass(frozen=True)
class TrainingSection:
    """The section of a run in which a program trained.

    Attributes:
        table: The losses on each fabric.
        agreement: Whether the losses of all fabrics are equal, in a sentence.
        equal: Whether they are.
        loss: Picture of the losses.
        loads: Picture of the loads of experts.
        light: Picture of the circuits; empty if none move.
        exposed: Picture of the communication that computation doesn't hide.
    """

    table: Table
    agreement: str
    equal: bool
    loss: Markup
    loads: Markup
    light: Markup
    exposed: Markup

    @classmethod
    def of(cls, fabrics: Sequence[FabricSummary]) -> Self | None:
        """Return the section; None if nothing trained."""
        rows = [(fabric, fabric.result.training) for fabric in fabrics]
        trained = [(fabric, result) for fabric, result in rows if result is not None]
        if not trained:
            return None
        shown = [fabric for fabric, _ in trained]
        difference = first_difference(trained)
        return cls(
            run_tables.training(trained),
            difference or _equal(trained),
            not difference,
            loss_picture(shown),
            loads_picture(shown),
            light_over_time(shown),
            exposed_picture(shown),
        )


def first_difference(trained: Sequence[tuple[FabricSummary, TrainingResult]]) -> str:
    """Return the first iteration whose losses differ, in a sentence; empty if they are equal.

    Losses are compared as they were printed, in full precision. An iteration that a fabric lacks is
    a difference.
    """
    printed = [{one.iteration: one.text for one in result.losses} for _, result in trained]
    names = [fabric.name for fabric, _ in trained]
    for iteration in sorted({number for losses in printed for number in losses}):
        texts = [losses.get(iteration, "none") for losses in printed]
        for name, text in zip(names, texts, strict=True):
            if text != texts[0]:
                return printable(
                    f"Losses differ from iteration {iteration} on: {names[0]} {texts[0]}, "
                    f"{name} {text}."
                )
    return ""


def _equal(trained: Sequence[tuple[FabricSummary, TrainingResult]]) -> str:
    iterations = counted(len(trained[0][1].losses), "iteration")
    if len(trained) == 1:
        return f"There is one fabric, with the losses of {iterations}."
    return (
        f"All {len(trained)} fabrics have equal losses in all of {iterations}: rank 0 printed the "
        f"same text, in full precision."
    )
