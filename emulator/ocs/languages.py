"""The languages that a switch speaks, by the name under which each one's listening socket is handed over."""

from collections.abc import Mapping
from typing import Final

from emulator.ocs.frontend import Language
from emulator.ocs.restconf.front_end import Restconf
from emulator.ocs.scpi import Scpi
from emulator.ocs.tl1.front_end import Tl1

LANGUAGES: Final[Mapping[str, Language]] = {"scpi": Scpi, "tl1": Tl1, "restconf": Restconf}
