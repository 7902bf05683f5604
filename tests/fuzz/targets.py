"""All fuzz targets: those that the modules `fuzz_*.py` of this folder list in `TARGETS`."""

from importlib import import_module
from pathlib import Path

from tests.support.fuzzing import FuzzTarget


def targets() -> tuple[FuzzTarget, ...]:
    """Return the targets of all modules, by name."""
    modules = (
        import_module(f"tests.fuzz.{f.stem}") for f in Path(__file__).parent.glob("fuzz_*.py")
    )
    found: list[FuzzTarget] = [target for module in modules for target in module.TARGETS]
    return tuple(sorted(found, key=lambda target: target.name))
