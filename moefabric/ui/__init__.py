"""User interfaces: the command line, the dashboard, the Prometheus exporter and the pytest plugin.

Each is thin over `moefabric.api`. Start with `cli.main`.
"""
