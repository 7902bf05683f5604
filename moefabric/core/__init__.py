"""Values and algebra that every other package uses: topology, circuits, demand, flows and rules."""
