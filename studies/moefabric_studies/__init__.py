"""Studies on the moefabric testbed: each judges claims of a paper with it.

`paper` is the MixNet paper's evaluation, `systems` other papers' systems, `oracle` other
simulators. They use moefabric's public API and its entry points only.
"""
