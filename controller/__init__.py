"""Controllers of regions and of the EPS: plan circuits, reconfigure safely, recover from failures.

Start with `reconfiguration`. `southbound` drives switches and OCSes, `service` is the process with
its northbound HTTP, `recovery` reroutes. Controllers never import the emulator or the agents.
"""
