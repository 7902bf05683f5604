"""Fabrics on several machines: a service on each machine makes its part.

Start with `service` (a machine's side) and `head` (the side of the machine that asked for it).
"""
