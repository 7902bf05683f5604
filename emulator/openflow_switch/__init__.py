"""An OpenFlow 1.3 switch with a tc-BPF datapath in the Linux kernel."""
