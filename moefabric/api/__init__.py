"""Experiments, results and running fabrics for programs; the command line goes through it."""
