"""Training workload: models, gating traces, iterations, pipelines, and demand prediction."""
