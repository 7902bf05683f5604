"""The controller of a region: what to light, the safe way to light it, and the devices that do."""
