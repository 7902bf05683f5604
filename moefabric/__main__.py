"""The program `moefabric`, and `python -m moefabric`.

Nothing is imported before an interruption is caught: the commands take some 0.3 s to import.
"""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interruption or lack of its imports ends it without a traceback."""
    try:
        from moefabric.ui.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("moefabric: interrupted\n")
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:  # of a package, or of this one's metadata
        if error.name is None or error.name.startswith("moefabric."):
            raise
        remedy = "run packaging/setup, then .venv/bin/moefabric, or pip install ."
        fault = f"{error.name} isn't installed in {sys.executable}: {remedy}"
        sys.stderr.write(f"moefabric: {fault}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
