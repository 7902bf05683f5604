"""Files and processes of a running fabric: folders, logs, locks, certificates, forks.

Start with `run_directory`, where the processes of a fabric find each other. Nothing here knows what
a fabric does.
"""
