"""Controllers of regions and the EPS: plan circuits, reconfigure safely, recover from failures."""
