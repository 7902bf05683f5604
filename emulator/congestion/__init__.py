"""Congestion controls of Linux's TCP as BPF programs, loaded while a run needs them."""
