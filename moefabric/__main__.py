"""The program `moefabric`, and `python -m moefabric`.

Nothing is imported before an interruption is caught: the commands take some 0.3 s to import.
"""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; an interruption of its imports ends it without a traceback."""
    try:
        from moefabric.ui.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("moefabric: interrupted\n")
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
