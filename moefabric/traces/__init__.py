"""Readers and writers of other tools' trace files."""
