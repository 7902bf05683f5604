"""Traces: readers and writers of other tools' trace files, one module for each format.

Start with `formats`. Readers return execution graphs (`moefabric.workload.graphs`) or gating.
"""
