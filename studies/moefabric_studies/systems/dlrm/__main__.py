"""The program of a rank.

    torchrun ... -m moefabric_studies.systems.dlrm SETUP COMMANDS

Rank 0 reads commands, a JSON object a line, from the FIFO COMMANDS, and prints a JSON object for
each. All ranks carry a command out together.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

from moefabric_studies.systems.dlrm.lesson import Lesson
from moefabric_studies.systems.dlrm.ranks import ACTIONS, RankModel


def main() -> None:
    """Carry out commands until the FIFO ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = RankModel(Lesson(**json.loads(sys.argv[1])))
    with ExitStack() as undo:
        is_first = dist.get_rank() == 0
        commands = undo.enter_context(Path(sys.argv[2]).open()) if is_first else None
        while line := _line_for_all(commands):
            command = json.loads(line)
            reply = ACTIONS[command.pop("do")](model, **command)
            dist.barrier()
            if is_first:
                print(json.dumps(reply), flush=True)
    dist.destroy_process_group()


def _line_for_all(commands: TextIO | None) -> str:
    """Return the next line, which rank 0 reads for all; empty at the end."""
    line = [commands.readline() if commands is not None else ""]
    dist.broadcast_object_list(line)
    return line[0]


if __name__ == "__main__":
    main()
