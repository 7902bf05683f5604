"""Packets, matches, flows and groups as values, which a datapath executes."""
