"""Observers of runs that call functions of a test."""

from collections.abc import Callable

from moefabric.execution.observer import RunObserver


def observer(**actions: Callable[..., object]) -> RunObserver:
    """Return an observer whose methods of these names call these functions."""
    calling = RunObserver()
    for name, action in actions.items():
        assert hasattr(calling, name), f"observers have no event {name}"
        setattr(calling, name, action)
    return calling
