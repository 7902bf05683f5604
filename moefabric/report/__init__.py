"""The report: a run told as a table for the terminal and as one HTML page with pictures."""
