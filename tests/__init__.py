"""Tests, by what they need: `unit`, `contract`, `kernel`, `system`, `fuzz` and `bench`."""
