"""`python -m moefabric` is the command `moefabric`."""

from moefabric.ui.cli.main import main

if __name__ == "__main__":
    main()
