"""Command line of the controllers: `python -m moefabric.controller --help`."""

import argparse
import sys
from pathlib import Path

from moefabric.core.errors import ControlError, MoefabricError
from moefabric.runtime import structured_log
from moefabric.runtime.run_directory import RunDirectory


def main(arguments: list[str] | None = None) -> int:
    """Run controllers until SIGTERM; return 0, or 1 after printing a fault in one line."""
    parser = argparse.ArgumentParser(
        prog="python -m moefabric.controller", description="Control a fabric's switches."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run-dir", type=Path, metavar="DIR", help="a fabric's run directory")
    source.add_argument(
        "--watch",
        type=Path,
        metavar="FOLDER",
        help="control every fabric whose run directory appears in this folder",
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--region", metavar="NAME", help="only the controller of this region; default: all"
    )
    part.add_argument("--eps", action="store_true", help="only the controller of the EPS")
    options = parser.parse_args(arguments)
    try:
        return _control(options)
    except MoefabricError as error:
        print(error, file=sys.stderr)
        return 1


def _control(options: argparse.Namespace) -> int:
    # Ryu takes most of a second to load: wrong arguments are reported before that.
    from moefabric.controller.service import supervisor
    from moefabric.controller.service.process import serve

    if options.watch:
        structured_log.start("controllers")
        return supervisor.watch(options.watch)
    run = RunDirectory(options.run_dir)
    if not (options.region or options.eps):
        structured_log.start("controllers", run.log_folder)
        return supervisor.supervise(run)
    wiring = supervisor.read_wiring(run)
    if wiring is None:
        raise ControlError(f"{run.path}: no fabric is wired there")
    region = supervisor.region_named(wiring, options.region) if options.region else None
    supervisor.start_log(run, (region,))
    serve(run, wiring, (region,))
    return 0


if __name__ == "__main__":
    sys.exit(main())
