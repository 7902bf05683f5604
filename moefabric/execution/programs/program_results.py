"""Options of programs on a fabric, and the results of their runs with a verdict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from statistics import fmean
from typing import Any, Final, Literal

from moefabric.results.model import FidelityResult, Verdict
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunFinding

_BYTES_LIMIT: Final = 0.02
"""Part of a program's bytes that may be counted elsewhere than planned."""
_PASSED: Final = FidelityResult(verdict=Verdict.PASS)


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Settings of programs on a fabric.

    Attributes:
        ranks: Number of ranks; None for as many as there are GPUs, or fewer if the program has.
        via: `eps`, `light` (circuits that are lit, and the EPS for other pairs) or `policy`
            (circuits and split that the policy chooses for the demand).
        policy: The policy of `via="policy"`.
        wall_s: Wall seconds that a run takes, as far as its size allows; None for as many as its
            measurement needs.
        verify: Whether to verify the results of the last run.
        greedy: Whether congestion control alone sets the rates of connections.
    """

    ranks: int | None = None
    via: Literal["eps", "light", "policy"] = "eps"
    policy: str = "mixnet-spill"
    wall_s: float | None = None
    verify: bool = True
    greedy: bool = False


@dataclass(frozen=True)
class ProgramResult:
    """Runs of a program, with times in model seconds and bytes of the model.

    Attributes:
        seconds: Duration of each run: from the common start to the end of the last rank.
        predicted_s: The model's duration.
        wrong: Wrong numbers of all ranks after the last run; None if not verified.
        planned_bytes: Bytes of one run between servers, by light and by EPS.
        counted_bytes: Payload that optical and electrical NICs sent in all runs together.
        step_ends_s: When each step ended in the last run, by rank; empty unless asked for.
        predicted_step_ends_s: When each step ends in the model, by rank.
        framed_bytes: As `planned_bytes`, with the frames of the messages on their connections.
        byte_scale: Bytes of the model for each byte that was sent.
        wall_s: Wall seconds that a run takes in the model.
        paced: Whether connections were paced.
        cpu_idle: Idle shares of the machine during the runs.
    """

    seconds: tuple[float, ...]
    predicted_s: float
    wrong: int | None
    planned_bytes: tuple[float, float]
    counted_bytes: tuple[float, float]
    step_ends_s: Sequence[Sequence[float]] = ()
    predicted_step_ends_s: Sequence[Sequence[float]] = ()
    framed_bytes: tuple[float, float] = (0.0, 0.0)
    byte_scale: float = 1.0
    wall_s: float = 0.0
    paced: bool = False
    cpu_idle: Sequence[float] = ()

    @property
    def mean_s(self) -> float:
        """Mean duration of the runs."""
        return fmean(self.seconds)

    def findings(self) -> Iterator[RunFinding]:
        """Yield the findings on results and bytes."""
        yield from reasons.WRONG_NUMBERS.judge(self.wrong or 0)
        least = max(_BYTES_LIMIT * sum(self.framed_bytes), 1e5 * self.byte_scale)
        for place, planned, total in zip(
            ("light", "the EPS"), self.framed_bytes, self.counted_bytes, strict=True
        ):
            counted = total / len(self.seconds)
            if abs(counted - planned) > least:
                yield from reasons.OTHER_BYTES.judge(place=place, counted=counted, planned=planned)


@dataclass(frozen=True, kw_only=True)
class JudgedResult:
    """A result with a verdict, such as `pass`, and its reasons."""

    fidelity: FidelityResult = _PASSED

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.fidelity.verdict

    @property
    def reasons(self) -> Sequence[str]:
        """Why it isn't `pass`."""
        return self.fidelity.reasons

    def judged_fields(self) -> dict[str, Any]:
        """Return the fields and the verdict for JSON."""
        fields = {one.name: getattr(self, one.name) for one in dataclass_fields(self)}
        judgement = {"verdict", "reasons", "findings", "cpu_idle_min"}
        del fields["fidelity"]
        return {**fields, **self.fidelity.model_dump(mode="json", include=judgement)}
