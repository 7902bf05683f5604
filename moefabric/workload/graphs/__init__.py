"""Execution graphs: the operations of all ranks of a job, folded and scaled to fit a testbed.

Start with `execution_graph`. Readers and writers of trace files are in `moefabric.traces`.
"""
