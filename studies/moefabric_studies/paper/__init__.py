"""Evaluation of the MixNet paper (SIGCOMM'25), predicted and emulated."""
