"""Bounded-loss transport of tensors over UDP, and the same interface over TCP."""
