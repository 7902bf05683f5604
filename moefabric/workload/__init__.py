"""Workload: computation and messages of a job, as data.

Start with `workload`. `gating` says which token goes where, `models` how large it is, `placement`
which server has which expert, `iterations` in which order, `collectives` in which steps; `graphs`
are recorded jobs. Nothing here knows the network.
"""
