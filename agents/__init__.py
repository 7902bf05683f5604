"""Agents of the servers: they send, receive, verify and time-stamp the bytes of a job.

Start with `engine.agent` (a server's side) and `fleet.fleet` (which commands all agents). `remote`
starts them over SSH. The engine needs the standard library only.
"""
