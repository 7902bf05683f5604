"""What can't be done, and how it is told."""


class RefusedError(Exception):
    """A request that can't be done; told in its reply."""


def said(error: OSError) -> str:
    """An error of the system, without its number."""
    return error.strerror or str(error)
