"""The composition root: the one room that sees emulator, controller and agents, and runs an experiment on them."""
