"""Emulated optical circuit switch: device state, management protocols, and its process."""
