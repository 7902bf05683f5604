"""Failure detection and rerouting in regions and in the EPS."""
