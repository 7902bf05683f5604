"""Flow tables, groups and counters as values, and the pipeline that flattens the tables."""
