"""YAML specifications, their loader, OCS profiles and the files of a running fabric."""
