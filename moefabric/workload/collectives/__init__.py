"""Schedules of collectives: which ranks exchange which bytes, and in what order."""
