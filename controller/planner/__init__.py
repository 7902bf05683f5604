"""The planner: from demand to circuits and to each pair's share of light. One policy a file; all pure."""
