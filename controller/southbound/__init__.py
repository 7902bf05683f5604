"""Devices that controllers command, each behind a Protocol."""
