"""Predictions: when the tasks of an experiment end in the model, without a fabric.

Start with `experiment` (the command `predict`) and `job_prediction`. Plans of single collectives
are in `moefabric.planner`; the simulations are in `moefabric.simulator`.
"""
