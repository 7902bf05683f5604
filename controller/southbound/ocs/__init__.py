"""Drivers for optical circuit switches: SCPI, TL1 and RESTCONF."""
