"""Execution: runs tasks on agents and controllers, and collects records.

Start with `run`, then `executor`. `programs` runs collectives, traces and users' programs on ranks,
and `torch` is PyTorch's backend. Fabrics come from `moefabric.testbed`.
"""
