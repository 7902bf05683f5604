"""A fabric whose servers train a DLRM, and the bytes that their NICs carry for each command."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from moefabric.api import testbeds
from moefabric.api.plugins import fabric_of
from moefabric_studies.systems.dlrm.lesson import Lesson

START_S = 60.0
"""How long ranks may take to import PyTorch and to draw their batches."""


class DlrmRanks:
    """The running ranks of a job, one on each server."""

    def __init__(
        self,
        ranks: testbeds.RankProcesses,
        lines: "SimpleQueue[str | None]",
        commands: TextIO,
        counters: testbeds.PortCounters,
    ) -> None:
        self._ranks, self._lines, self._commands, self._counters = ranks, lines, commands, counters

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
        before = self._counters.read()
        command = {"do": action, "codec": codec, "repeat": repeat, **options}
        self._commands.write(json.dumps(command) + "\n")
        self._commands.flush()
        line = self._lines.get()
        if line is None:
            self._ranks.wait()
            raise AssertionError("ranks end when their commands end")
        sent = self._counters.read().payload_since(before)[:, testbeds.SENT]
        return {**json.loads(line), "sent_bytes": int(sent.sum())}


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
    spec = fabric_of(
        {
            "fabric": name,
            "gpus_per_server": 1,
            "nic_rate": f"{rate_bps}b/s",
            "nics": {"optical": 0, "electrical": 1},
            "regions": [{"servers": lesson.ranks}],
            "scale": {"bytes": 1},
        }
    )
    fabric = spec.build()
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
