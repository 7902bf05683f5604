"""The hardware that lights up: servers, packet switches and the optical circuit switch, as Linux kernel parts."""
