"""Reconfiguration policies: from a demand matrix to circuits and to the split over OCS and EPS.

All of it is pure: no clocks, threads or I/O, so that equal arguments always give equal results.
"""
