"""Values and algebra: topology, circuits, demand, flows, rules, transitions, failures, errors.

Start with `topology` and `circuits`. All other packages use these values; nothing here does I/O.
"""
