"""Registers the backend with PyTorch. `import torch` runs this, so it is cheap."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from moefabric.execution.torch.process_group import AgentProcessGroup

BACKEND: Final = "moefabric"


def register() -> None:
    """Register the backend, once; nothing where PyTorch has no collectives."""
    try:
        import torch.distributed as dist
    except ImportError:
        return
    if dist.is_available() and BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _backend_options: Any) -> "AgentProcessGroup":
    """Return a process group; PyTorch calls this for every group of the backend."""
    from moefabric.execution.torch.process_group import AgentProcessGroup

    return AgentProcessGroup(options)
