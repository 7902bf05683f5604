"""The roster of a table's flows: which ones of the next table are others, at the price of comparing identities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.switch.flow import Flow, FlowKey, Group


@dataclass(frozen=True)
class Difference:
    """Flows that come in or are other than before, and the keys of those that go."""

    put: Mapping[FlowKey, Flow]
    drop: Sequence[FlowKey]
    following: Mapping[int, Flow]
    """The next table, by the identity of its flows."""


class Roster:
    """The flows and groups of a table. Who keeps its own flows from one table to the next gives the same objects again."""

    def __init__(self) -> None:
        self._by_identity: Mapping[int, Flow] = {}
        self.flows: dict[FlowKey, Flow] = {}
        self.groups: Mapping[int, Group] = {}

    def against(self, flows: Sequence[Flow]) -> Difference:
        """What makes a table of these flows; of several with one key, the last."""
        following = {id(flow): flow for flow in flows}
        fresh = [flow for number, flow in following.items() if number not in self._by_identity]
        drop = {flow.key for number, flow in self._by_identity.items() if number not in following}
        put = {flow.key: flow for flow in fresh}
        if len(put) < len(fresh) or any(name in self.flows and name not in drop for name in put):
            return self.against(list({flow.key: flow for flow in flows}.values()))
        return Difference(put, [name for name in drop if name not in put], following)

    def grouped(self) -> Mapping[FlowKey, Flow]:
        """Flows that go through groups."""
        return {name: flow for name, flow in self.flows.items() if flow.through_groups}

    def become(self, difference: Difference, groups: Mapping[int, Group]) -> None:
        for name in difference.drop:
            del self.flows[name]
        self.flows.update(difference.put)
        self._by_identity, self.groups = difference.following, groups
