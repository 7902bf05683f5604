"""Python interface: experiments, results, running fabrics, and sweeps of many runs.

Start with `experiment` and `lab`. `moefabric/__init__.py` has the names that programs import.
"""
