"""Linux kernel interfaces: namespaces, netlink, BPF, processes and event loop."""
