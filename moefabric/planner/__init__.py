"""Planner: policies, from a demand matrix to circuits and to the split over OCS and EPS.

Start with `policy` and `plan`; each policy is a module. `sending` turns splits into flows with
rates. All of it is pure: equal arguments give equal results.
"""
