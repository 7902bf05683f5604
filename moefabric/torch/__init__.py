"""PyTorch's process group backend `moefabric`."""
