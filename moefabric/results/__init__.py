"""Results of a run: their JSON, their journal, the verdict and comparisons.

Start with `model` and `parts`, the JSON of a run. `records` holds what a run recorded,
`verdict` judges it, and `journal` keeps it on disk. Nothing here runs or predicts anything.
"""
