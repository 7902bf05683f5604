"""Predictions: the workload of an experiment, its circuits and tasks, and control times.

`moefabric.Experiment.predict` predicts whole experiments; these are its parts.
"""

from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.gpu_traffic import Parallelism, gpu_traffic
from moefabric.prediction.job_prediction import TaskPlanner, deserved_circuits
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.scaling import shortest_wall_s
from moefabric.prediction.workload_loader import workload, workload_of, workload_on
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.workload import Workload

__all__ = [
    "ControlPrediction", "Jobs", "Parallelism", "Substitutions", "TaskPlanner", "Workload",
    "deserved_circuits", "gpu_traffic", "shortest_wall_s", "workload", "workload_of", "workload_on",
]  # fmt: skip
