"""Variables of the caller's environment that processes of a fabric and programs on servers get.

Shells hold tokens, above all that of Ray, which is root on all nodes of a cluster. So variables
pass by a list of names, and no others.
"""

import os
from collections.abc import Mapping
from typing import Final

_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "SUDO_UID", "SUDO_GID", "SUDO_USER"),
        *("LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR"),
        *("TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
        *("DOCKER_HOST", "SSH_AUTH_SOCK"),  # sockets of the container engine and of SSH's keys
        *("MOEFABRIC_RUN_DIR", "MOEFABRIC_LOG", "MOEFABRIC_MACHINE", "MOEFABRIC_REGION_PROCESSES"),
    }
)
_PREFIXES: Final = (
    *("LC_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "CUDA_"),
    *("NCCL_", "GLOO_", "UCX_", "TORCH_", "OMPI_", "PRTE_", "PMIX_"),
)


def passed_environment() -> dict[str, str]:
    """Return the caller's variables that processes of a fabric and programs on servers get."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }


def fabric_user() -> int:
    """Return the user to whom fabrics of this process belong: who called sudo, or its own."""
    user = os.environ.get("SUDO_UID", "")
    return int(user) if os.geteuid() == 0 and user.isdigit() else os.geteuid()


def named_variables(words: tuple[str, ...]) -> Mapping[str, str]:
    """Return the variables of options `NAME=VALUE`, or `NAME` for the caller's value.

    Raises:
        ValueError: If a word has no name, or the caller has no such variable.
    """
    variables = {}
    for word in words:
        name, has_value, value = word.partition("=")
        if not name or not (has_value or name in os.environ):
            raise ValueError(f"{word!r} is not NAME=VALUE, nor a variable of this shell")
        variables[name] = value if has_value else os.environ[name]
    return variables
