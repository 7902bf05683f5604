"""Testbed: fabric, controllers and agents as one object that is brought up, checked and broken.

Start with `testbed`. `cluster` spreads a fabric over machines. Running a workload on it is the
business of `moefabric.execution`.
"""
