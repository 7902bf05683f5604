"""Verdict: whether the measurements of a run can be believed, as pure functions of its records.

Start with `reasons`, which has the bounds and the words, and `verdict`, which judges by them.
`iteration_outcome` converts an iteration's records, `measurements` holds what they show, and
`fabric_result` sums them up.
"""
