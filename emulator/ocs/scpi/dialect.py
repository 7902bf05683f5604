"""SCPI as a dialect of the emulated switch."""

from typing import Final

from moefabric.core.ocs_dialect import OcsDialect

SCPI: Final = OcsDialect(port=5025, front_end="moefabric.emulator.ocs.scpi.front_end:ScpiFrontEnd")
