"""Verdict: whether the measurements of a run can be believed, as pure functions of its records.

Start with `fidelity`, which has the bounds and the reasons. `iteration_outcome` converts an
iteration's records, `observation` compares them, and `fabric_result` sums them up.
"""
