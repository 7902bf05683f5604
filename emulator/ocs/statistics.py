"""What an optical switch counts for its observers: changes and dark time."""

from moefabric.emulator.ocs.events import EventBus, OcsEvent, OcsEventKind


class OcsStatistics:
    """Counts since the start of the switch's process.

    Attributes:
        changes: Commands that changed cross-connects.
        refusals: Commands that were refused.
        dark_ns: Time from the change to the light, summed over cross-connects.
    """

    def __init__(self, events: EventBus) -> None:
        self.changes = self.refusals = self.dark_ns = 0
        self._changed_ns: dict[tuple[int, int], int] = {}
        events.subscribe(self._count)

    def _count(self, event: OcsEvent) -> None:
        match event.kind:
            case OcsEventKind.CHANGED:
                self.changes += 1
                for pair in event.parted:
                    self._changed_ns.pop(pair, None)
                self._changed_ns |= dict.fromkeys(event.made, event.at_ns)
            case OcsEventKind.SETTLED:
                for pair in event.made:
                    self.dark_ns += event.at_ns - self._changed_ns.pop(pair, event.at_ns)
            case OcsEventKind.REFUSED:
                self.refusals += 1
            case _:
                pass
