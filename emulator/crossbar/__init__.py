"""Crossbar that forwards frames from each input port to the output that its circuit selects."""
