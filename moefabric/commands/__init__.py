"""The commands: what the command line does, one family a file."""
