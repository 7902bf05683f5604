"""Simulator: routes, the fluid bound, max-min sharing, and the simulation of all flows over time.

Start with `fluid`, then `event_simulation`. All of it is pure; experiments as a whole are predicted
in `moefabric.prediction`.
"""
