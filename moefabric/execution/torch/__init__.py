"""PyTorch's process group backend `moefabric`.

`torch.distributed.init_process_group("moefabric")` needs no import of this package where it is
installed: PyTorch loads the entry point `torch.backends`. All-to-alls of floating-point tensors go
to the agent of the rank's server, all other collectives to gloo. Without an agent, gloo does all.
"""

from moefabric.execution.torch.registration import register

__all__ = ["register"]

register()
