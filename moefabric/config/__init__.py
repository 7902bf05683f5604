"""Configuration: YAML specifications, their loader and validation, OCS profiles, plug-ins by name.

Start with `experiment` and `fabric`. The files of running fabrics are in `moefabric.runtime`.
"""
