"""Metrics of running fabrics in the format of Prometheus."""
