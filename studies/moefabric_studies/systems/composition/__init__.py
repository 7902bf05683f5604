"""The study of several systems together."""
