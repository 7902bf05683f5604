"""The MixNet paper's evaluation, predicted: jobs, networks and tables, each row set against the published value."""
