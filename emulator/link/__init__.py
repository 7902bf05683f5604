"""Programmable links: queue disciplines, and a relay that applies them to frames."""
