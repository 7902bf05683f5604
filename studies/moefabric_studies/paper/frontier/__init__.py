"""Iteration time against the cost of a server's network, with and without forwarding."""
