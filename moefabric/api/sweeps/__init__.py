"""Sweeps: an experiment under many changes, each run on cores of its own."""
