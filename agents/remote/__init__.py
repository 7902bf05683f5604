"""Agents on real servers over SSH."""
