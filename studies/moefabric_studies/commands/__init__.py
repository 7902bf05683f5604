"""Commands that the studies add to `moefabric`: `paper`, `frontier`, `system`, `oracle`."""
