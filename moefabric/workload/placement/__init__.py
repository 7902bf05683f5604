"""Placement: which rank has which expert, which copies of tokens travel, and in which order.

Start with `placements`. The bytes that follow are computed in `moefabric.workload.workload`.
"""
