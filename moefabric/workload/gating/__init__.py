"""Gating: which token of which rank goes to which expert; recorded, generated and predicted.

Start with `traces`. Placement of experts on servers is in `moefabric.workload.placement`.
"""
