"""Astraea: its actor's training, and the study of its claims."""
