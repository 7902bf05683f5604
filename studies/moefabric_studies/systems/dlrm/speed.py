"""All-to-alls and iterations with and without coding, on fabrics of several link rates.

The servers of a fabric train a DLRM; what their NICs carry is counted for each command.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from moefabric.api import testbeds
from moefabric.api.plugins import fabric_of
from moefabric_studies.codecs.block_codecs import HYBRID
from moefabric_studies.systems.dlrm.lesson import Lesson
from moefabric_studies.systems.measured import one_nic_fabric

CODECS = (HYBRID, "zstd", "fp16", "int8")
"""Codecs whose all-to-alls are timed; the first one is the system's."""


@dataclass(frozen=True)
class DlrmRanks:
    """The running ranks of a job, one on each server.

    Attributes:
        ranks: Their processes.
        lines: Lines that rank 0 prints; None at its end.
        commands: Commands to the ranks.
        counters: Counters of the servers' NICs.
    """

    ranks: testbeds.RankProcesses
    lines: "SimpleQueue[str | None]"
    commands: TextIO
    counters: testbeds.PortCounters

    def ask(self, action: str, codec: str, repeat: int, **options: float) -> dict[str, Any]:
        """Have all ranks carry out a command of `moefabric_studies.systems.dlrm.ranks`.

        Args:
            action: Name of the command.
            codec: Codec of the blocks.
            repeat: How often it is done.
            **options: Other arguments of the command.

        Returns:
            What rank 0 prints, and with it the `sent_bytes`: payload that the NICs of all servers
            sent meanwhile.

        Raises:
            RankFailedError: A rank has ended.
        """
        before = self.counters.read()
        command = {"do": action, "codec": codec, "repeat": repeat, **options}
        self.commands.write(json.dumps(command) + "\n")
        self.commands.flush()
        line = self.lines.get()
        if line is None:
            self.ranks.wait()
            raise AssertionError("ranks end when their commands end")
        sent = self.counters.read().payload_since(before)[:, testbeds.SENT]
        return {**json.loads(line), "sent_bytes": int(sent.sum())}


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


@contextmanager
def dlrm_ranks(name: str, rate_bps: float, lesson: Lesson) -> Iterator[DlrmRanks]:
    """Bring up a fabric of servers with one NIC each on a packet switch, and start the ranks.

    Args:
        name: Name of the fabric.
        rate_bps: Rate of the NICs.
        lesson: Sizes of the training.

    Raises:
        MoefabricError: The machine lacks something, or a rank has failed.
    """
    fabric = fabric_of(one_nic_fabric(name, lesson.ranks, rate_bps)).build()
    lines: SimpleQueue[str | None] = SimpleQueue()

    def on_line(_rank: object, stream: str, line: str) -> None:
        if stream == "stdout":
            lines.put(line)

    with (
        TemporaryDirectory() as folder,
        testbeds.running_testbed(fabric) as (wiring, _, _),
        testbeds.port_counters(fabric) as counters,
    ):
        fifo = Path(folder, "commands")
        os.mkfifo(fifo)
        module = [sys.executable, "-m", "moefabric_studies.systems.dlrm"]
        place = testbeds.RankPlace.on_fabric(wiring, fabric.servers)
        command = [*module, json.dumps(asdict(lesson)), str(fifo)]
        job = testbeds.RankJob(place, command, run_id=name)
        with (
            testbeds.RankProcesses(job, on_line, on_end=lambda: lines.put(None)) as ranks,
            os.fdopen(os.open(fifo, os.O_RDWR), "w") as commands,
        ):
            yield DlrmRanks(ranks, lines, commands, counters)
