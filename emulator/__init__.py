"""Emulated hardware: servers, packet switches and optical circuit switches in the Linux kernel."""
