"""Southbound: the devices that a controller commands, each behind a seam with an in-memory answer beside it."""
