"""Records of a run, in wall time: the reports of agents, controllers and port counters.

Start with `records`. Model seconds and bytes appear in `moefabric.results.verdict` only.
"""
