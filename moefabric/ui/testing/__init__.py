"""Tests on emulated fabrics: a plugin of pytest that `pytest --moefabric` turns on.

`FabricUnderTest` is the type of the fixtures `fabric` and `shared_fabric`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from moefabric.ui.testing.lab import FabricUnderTest

__all__ = ["FabricUnderTest"]


def __getattr__(name: str) -> object:
    """Import the class when it is first used: the plugin is loaded by every run of pytest."""
    if name == "FabricUnderTest":
        from moefabric.ui.testing.lab import FabricUnderTest

        return FabricUnderTest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
