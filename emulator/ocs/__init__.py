"""The optical circuit switch as a device: what it joins, the words it understands, and its place on the network."""
