"""Faults at random moments of fabrics' lives, and what must not be left afterwards."""
