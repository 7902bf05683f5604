"""Devices that controllers command, each behind a Protocol with an in-memory implementation."""
