"""SCPI front end (SCPI-99) with the commands of Polatis switches."""
