"""Numbers of groups: ASTRA-sim and PARAM take process groups with decimal names only."""

from moefabric.workload.execution_graph import WORLD, ExecutionGraph


def group_numbers(graph: ExecutionGraph) -> dict[str, str]:
    """Return the decimal name of each group; groups that have one keep it.

    Args:
        graph: A graph, whose group of all ranks is left out unless it has another order.
    """
    everybody = tuple(sorted(graph.ranks))
    names = [name for name, ranks in graph.groups.items() if name != WORLD or ranks != everybody]
    numbers = {name: name for name in names if name.isdecimal() and name.isascii()}
    numbers.pop("0", None)
    free = (str(n) for n in range(1, len(names) + len(numbers) + 1) if str(n) not in numbers)
    return {name: numbers.get(name) or next(free) for name in names}
