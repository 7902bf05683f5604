"""Datapaths that execute flows: tc-BPF programs in the kernel, and a model in memory."""
