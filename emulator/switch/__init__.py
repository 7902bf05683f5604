"""An OpenFlow switch whose packets the kernel carries: its flows as values, its datapath in tc-BPF, its agent."""
