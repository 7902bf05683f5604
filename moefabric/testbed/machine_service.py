"""Program of a machine that carries parts of fabrics: the machine service with their processes.

The first line of its standard input is the secret that heads have to know. Once it listens, it
writes the port as a line of JSON to standard output. It ends, and its parts with it, at SIGTERM or
at the end of its standard input.
"""

import argparse
import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from moefabric.core.machines import LEASE_S
from moefabric.testbed.cluster.service import MachineService
from moefabric.testbed.fabric_processes import fabric_processes


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m moefabric.testbed.machine_service --listen ADDRESS`."""
    parser = argparse.ArgumentParser(prog="machine_service", description=__doc__)
    parser.add_argument("--listen", required=True, help="IPv4 address, of the machines' network")
    parser.add_argument("--port", type=int, default=0, help="TCP port; default: any")
    parser.add_argument(
        "--lease",
        type=float,
        default=LEASE_S,
        help="seconds of silence after which the part of a head ends",
    )
    parser.add_argument("--once", action="store_true", help="end with the first part of a fabric")
    options = parser.parse_args(arguments)
    if not (secret := sys.stdin.readline().strip()):
        parser.error("the first line of standard input has to be the secret")
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(secret, options))
    return 0


async def _serve(secret: str, options: argparse.Namespace) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    _at_end_of_input(lambda: loop.call_soon_threadsafe(task.cancel))
    service = MachineService(secret, fabric_processes, options.lease)
    await service.serve(options.listen, options.port, _show_port, once=options.once)


def _at_end_of_input(callback: Callable[[], object]) -> None:
    def read() -> None:
        with suppress(OSError, ValueError):
            while sys.stdin.read(1024):
                pass
        with suppress(RuntimeError):  # the service has ended
            callback()

    threading.Thread(target=read, daemon=True).start()


def _show_port(port: int) -> None:
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
