"""Agents of the servers: the engine that moves bytes, and the fleet that commands all engines."""
