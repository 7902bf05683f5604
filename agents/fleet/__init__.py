"""Commands the agents of all servers together."""
