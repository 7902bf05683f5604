"""A rank: executes functions of files that the test names, and sends their results back."""

import os
import sys
import traceback
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from types import ModuleType


@cache
def module_of(file: str) -> ModuleType:
    spec = spec_from_file_location("rank_functions", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    while True:
        try:
            file, name, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            reply = True, getattr(module_of(file), name)(*arguments)
        except Exception as error:  # noqa: BLE001 - the test judges it
            if os.environ.get("RANK_TRACEBACKS"):
                traceback.print_exc()
            reply = False, f"{type(error).__name__}: {error}"
        connection.send(reply)


if __name__ == "__main__":
    main(int(sys.argv[1]))
