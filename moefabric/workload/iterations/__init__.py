"""Iterations: the tasks of a training job, their order, and the bytes of each.

Start with `iteration` (one region's operations) and `pipeline` (the tasks of a whole job).
"""
