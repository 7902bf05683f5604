"""The servers that send: gating and trace readers, the data-plane agent, and the fleet that commands all agents."""
