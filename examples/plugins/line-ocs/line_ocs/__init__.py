"""A management protocol of one line for each command."""
