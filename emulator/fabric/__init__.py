"""Hardware of a fabric: plan, links, switches, optics and lifecycle."""
