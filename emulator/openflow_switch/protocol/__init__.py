"""The OpenFlow 1.3.5 wire format (ONF TS-023): constants, fields, actions, messages."""
