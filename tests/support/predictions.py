"""Predictions of experiments as JSON."""

from pathlib import Path

from moefabric.config.experiment import ExperimentSpec
from moefabric.prediction.experiment import predict_fabrics
from moefabric.results.parts import Json


def predict_experiment(spec: ExperimentSpec, folder: Path) -> Json:
    """Return the JSON of an experiment's prediction."""
    return predict_fabrics(spec, folder).to_json()
