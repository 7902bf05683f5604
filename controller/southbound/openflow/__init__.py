"""The packet switches of a controller, reached over OpenFlow 1.3."""
