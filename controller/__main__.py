"""The door of the controllers: `python -m controller --run-dir DIR [--region r0 | --eps]`, or `--watch FOLDER`."""

import argparse
import logging
import sys
from pathlib import Path

from moefabric.errors import ControlError, MoefabricError
from moefabric.management import RunDir


def main(words: list[str] | None = None) -> int:
    """Control until SIGTERM: 0. 1 with one line for what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m controller", description="Control a fabric's switches.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="a fabric's run directory")
    where.add_argument(
        "--watch", type=Path, metavar="FOLDER", help="control every fabric whose run directory appears there"
    )
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument(
        "--region", metavar="NAME", help="the controller of this region alone; default: all, a process each"
    )
    whom.add_argument("--eps", action="store_true", help="the controller of the EPS alone")
    chosen = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _control(chosen)
    except MoefabricError as fault:
        print(fault, file=sys.stderr)
        return 1


def _control(chosen: argparse.Namespace) -> int:
    # Ryu takes most of a second to load: a faulty word is told before that.
    from controller import supervise
    from controller.process import serve

    if chosen.watch or not (chosen.region or chosen.eps):
        supervise.block_stopping()
        return supervise.watch(chosen.watch) if chosen.watch else supervise.supervise(RunDir(chosen.run_dir))
    wiring = supervise.wiring_at(RunDir(chosen.run_dir))
    if wiring is None:
        raise ControlError(f"{chosen.run_dir}: no fabric is wired there")
    serve(wiring, supervise.region_named(wiring, chosen.region) if chosen.region else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
