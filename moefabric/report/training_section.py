"""What the page of a run says about a program that trained: losses, experts, light."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from markupsafe import Markup

from moefabric.report.expert_loads import expert_loads
from moefabric.report.formatting import counted, printable, seconds
from moefabric.report.light_over_time import light_over_time
from moefabric.report.summary import FabricSummary, changes_circuits
from moefabric.report.training_curves import Curve, iteration_curves, loss_curves
from moefabric.runner.result_parts import TrainingResult


@dataclass(frozen=True)
class TrainingSection:
    """The section of a run in which a program trained.

    Attributes:
        rows: The fabrics on which it trained, with their results.
        agreement: Whether the losses of all fabrics are equal, in a sentence.
        equal: Whether they are.
        loss: Picture of the losses.
        loads: Picture of the loads of experts.
        light: Picture of the circuits; empty if none move.
        exposed: Picture of the communication that computation doesn't hide.
    """

    rows: list[tuple[FabricSummary, TrainingResult]]
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
            trained,
            difference or _equal(trained),
            not difference,
            loss_picture(shown),
            loads_picture(shown),
            light_over_time(shown),
            exposed_picture(shown),
        )

    @staticmethod
    def changes_a_layer(fabric: FabricSummary) -> float | None:
        """Return how often circuits moved for a layer in both passes; None without requests."""
        requests = fabric.result.reconfigurations
        layers = {(one.iteration, one.layer) for one in requests if one.layer is not None}
        moved = sum(changes_circuits(one) for one in requests)
        return moved / len(layers) if layers else None


def loss_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the losses of fabrics over model time; empty if nothing trained."""
    curves = []
    for fabric in fabrics:
        if (result := fabric.result.training) is not None and result.losses:
            points = tuple((one.model_s, one.loss) for one in result.losses)
            figure = f"{counted(len(points), 'iteration')} in {seconds(points[-1][0])}"
            curves.append(Curve(fabric.name, points, figure))
    return loss_curves(curves)


def loads_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the loads of experts on the first fabric that has any; empty if none has."""
    for fabric in fabrics:
        if (result := fabric.result.training) is not None and result.tokens:
            return expert_loads(np.array(result.tokens, np.int64))
    return Markup()


def exposed_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the exposed communication of each iteration; empty if no iteration has any."""
    curves = [
        Curve(
            fabric.name,
            tuple(
                (float(one.iteration), one.exposed_comm_s)
                for one in fabric.result.iterations
                if one.exposed_comm_s is not None
            ),
            f"median {seconds(fabric.exposed_s)}",
        )
        for fabric in fabrics
    ]
    return iteration_curves(curves, "exposed communication of an iteration")


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
