"""Sending: the flows of a collective, their routes, their paces and their fluid durations.

Start with `task_flows`. Policies choose circuits and splits one level up.
"""
