"""The schedules that moefabric registers, by name."""

from moefabric.config.plugins import SCHEDULES, built_in_names, load_plugin
from moefabric.workload.collectives.schedule import CollectiveSchedule

BUILT_IN: dict[str, CollectiveSchedule] = {
    name: load_plugin(SCHEDULES, name, CollectiveSchedule) for name in built_in_names(SCHEDULES)
}
