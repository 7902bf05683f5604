"""Programs on the ranks of a fabric: collectives in steps, traces, and users' own programs.

Start with `program_fabric`. `perf` measures collectives, `replay` replays traces, `training`
trains a model. Collective schedules are in `moefabric.workload.collectives`.
"""
