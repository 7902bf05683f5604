"""OpenFlow 1.3.5 (ONF TS-023) messages as bytes, for switches and controllers."""
