"""All-to-alls and iterations with and without coding, on fabrics of several link rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from moefabric_studies.codecs.block_codecs import HYBRID
from moefabric_studies.systems.dlrm.lesson import Lesson
from moefabric_studies.systems.dlrm.testbed import DlrmRanks, dlrm_ranks
from moefabric_studies.systems.study import StudyContext

CODECS = (HYBRID, "zstd", "fp16", "int8")
"""Codecs whose all-to-alls are timed; the first one is the system's."""


def formula(ratio: float, encode_s: float, decode_s: float, wire_s: float) -> float:
    """Return the speed-up of an all-to-all: 1 / (1/CR + BW (1/T_comp + 1/T_decomp)).

    Args:
        ratio: Compression ratio CR.
        encode_s: Time to encode the plain bytes: bytes / T_comp.
        decode_s: Time to decode them: bytes / T_decomp.
        wire_s: Time of the plain bytes on the wire: bytes / BW.
    """
    return 1 / (1 / ratio + (encode_s + decode_s) / wire_s)


@dataclass(frozen=True)
class CodecSpeed:
    """An all-to-all with a codec, against one of 32-bit floats.

    Attributes:
        rate_bps: Rate of the NICs.
        ratio: Payload that NICs sent without the codec, relative to that with it.
        encode_s: Time to encode the busiest rank's bytes, all ranks at once, without a network.
        decode_s: Time to decode as many.
        predicted: Speed-up that `formula` gives for the nominal rate.
        measured: Speed-up of each all-to-all over the median one of 32-bit floats.
    """

    rate_bps: float
    codec: str
    ratio: float
    encode_s: float
    decode_s: float
    predicted: float
    measured: tuple[float, ...]

    @property
    def median_speed_up(self) -> float:
        """Median of the measured speed-ups."""
        return median(self.measured)


@dataclass(frozen=True)
class FabricSpeeds:
    """Measurements on the fabric of one rate.

    Attributes:
        speeds: Speeds of the codecs.
        worst_errors: Largest errors of numbers that arrived, relative to their bounds.
    """

    speeds: tuple[CodecSpeed, ...]
    worst_errors: tuple[float, ...]

    def of(self, codec: str) -> CodecSpeed:
        """Return the speed of a codec."""
        return next(speed for speed in self.speeds if speed.codec == codec)


def measure_speeds(ranks: DlrmRanks, rate_bps: float, repeat: int) -> FabricSpeeds:
    """Time all-to-alls with each codec, after some steps of training.

    Args:
        rate_bps: Rate of the NICs.
        repeat: All-to-alls of each codec.
    """
    worst = ranks.ask("check", HYBRID, 2)["worst"]
    ranks.ask("exchange", "fp32", 1)  # opens congestion windows
    plain = ranks.ask("exchange", "fp32", repeat)
    plain_s = plain["seconds"]
    speeds = []
    for codec in CODECS:
        alone = ranks.ask("code", codec, repeat)
        wire_s = 8 * alone["bytes"] / rate_bps
        encode_s, decode_s = median(alone["encode_s"]), median(alone["decode_s"])
        predicted = formula(alone["ratio"], encode_s, decode_s, wire_s)
        coded = ranks.ask("exchange", codec, repeat)
        measured = tuple(median(plain_s) / coded_s for coded_s in coded["seconds"])
        ratio = plain["sent_bytes"] / coded["sent_bytes"]
        speed = CodecSpeed(rate_bps, codec, ratio, encode_s, decode_s, predicted, measured)
        speeds.append(speed)
    return FabricSpeeds(tuple(speeds), tuple(worst))


@dataclass(frozen=True)
class TrainingSpeed:
    """Iterations with and without coding; all-to-alls have a given share without.

    Attributes:
        speed_ups: Iteration time without coding, relative to that of each iteration with it.
        share: Share of the all-to-alls in iterations without coding.
        exchange_speed_up: Time of the all-to-alls without coding, relative to that with it.
    """

    speed_ups: tuple[float, ...]
    share: float
    exchange_speed_up: float

    @property
    def amdahl(self) -> float:
        """Speed-up that the share and the all-to-alls' speed-up give."""
        return 1 / (1 - self.share + self.share / self.exchange_speed_up)


def measure_training(ranks: DlrmRanks, share: float, iterations: int) -> TrainingSpeed:
    """Time iterations of training whose all-to-alls take a share of the time without coding.

    Args:
        share: The share; a pause stands for computation that this model lacks.
        iterations: Iterations of each kind.
    """
    trial = ranks.ask("train", "fp32", 3)
    exchange_s = median(trial["exchange_s"])
    gap_s = max(0.0, exchange_s / share - median(trial["seconds"]))
    plain = ranks.ask("train", "fp32", iterations, gap_s=gap_s)
    coded = ranks.ask("train", HYBRID, iterations, gap_s=gap_s)
    plain_s = median(plain["seconds"])
    return TrainingSpeed(
        tuple(plain_s / coded_s for coded_s in coded["seconds"]),
        median(plain["exchange_s"]) / plain_s,
        median(plain["exchange_s"]) / median(coded["exchange_s"]),
    )


def measure_fabrics(
    rates_bps: Sequence[float],
    train_rate_bps: float,
    lesson: Lesson,
    repeat: int,
    share: float,
    context: StudyContext,
) -> tuple[list[FabricSpeeds], TrainingSpeed]:
    """Measure all-to-alls at each rate, and training at one of them.

    Args:
        rates_bps: Rates of the NICs.
        train_rate_bps: One of them, at which iterations are timed.
        lesson: Sizes of the training.
        repeat: All-to-alls, and iterations, of each codec.
        share: Share of the all-to-alls in iterations without coding.
        context: Keeps what has been measured.
    """

    def measure(name: str, rate_bps: float) -> tuple[FabricSpeeds, TrainingSpeed | None]:
        with dlrm_ranks(name, rate_bps, lesson) as ranks:
            speeds, trains = measure_speeds(ranks, rate_bps, repeat), rate_bps == train_rate_bps
            return speeds, measure_training(ranks, share, repeat) if trains else None

    fabrics, training = [], None
    for rate_bps in rates_bps:
        name, kind = f"dlrm-{rate_bps / 1e3:.0f}k", tuple[FabricSpeeds, TrainingSpeed | None]
        speeds, trained = context.keep(name, kind, partial(measure, name, rate_bps))
        fabrics.append(speeds)
        training = training or trained
    assert training is not None
    return fabrics, training
