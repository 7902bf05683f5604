"""Report of a run: a table for the terminal, and an HTML page with charts."""
