"""Emulated hardware: servers, packet switches, links and optical circuit switches in Linux.

Start with `fabric.lifecycle`. `ocs` is the OCS as a device, `openflow_switch` the switch in BPF,
`linux` the system calls. Nothing here plans or controls anything.
"""
