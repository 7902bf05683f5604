"""Everything that the study measures, transport by transport."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np

from moefabric.api.links import Lateness, LinkBehaviour
from moefabric_studies.systems.dlcp import transports
from moefabric_studies.systems.dlcp.incast import IncastTimes, incast_times
from moefabric_studies.systems.dlcp.parallel_training import train_with_ring, train_with_server
from moefabric_studies.systems.dlcp.setup import Setup
from moefabric_studies.systems.dlcp.training import Progress, Replicas
from moefabric_studies.systems.dlcp.transports import TransportChoice, bounded_loss
from moefabric_studies.systems.study import StudyContext

COMPRESSION: Final = 16
"""How many times fewer bytes a compressed gradient has."""
MOST_LATE_NS: Final = 1_000_000
"""Lateness of a link's 99th percentile, a fifth of a full queue, beyond which a run is invalid."""
_ATTEMPTS: Final = 3
T = TypeVar("T", IncastTimes, Progress)
Incasts = dict[str, list[IncastTimes]]
"""Repeats of an incast by the transport's name."""


@dataclass(frozen=True)
class Measurements:
    """Measurements by the name of the transport.

    Attributes:
        incast: Of few workers.
        deep: Of many workers.
        whole: Of many workers with cubic, with whole gradients and with compressed ones.
        paths: Of few workers over two paths.
        server: Training with a parameter server; the first seed.
        ring: Training with a ring.
        accuracy: Trainings with a server by their loss bound in percent, one for each seed.
    """

    incast: Incasts
    deep: Incasts
    whole: tuple[IncastTimes, IncastTimes]
    paths: Incasts
    server: dict[str, Progress]
    ring: dict[str, Progress]
    accuracy: dict[int, list[Progress]]

    def lateness(self) -> list[Lateness]:
        """Return the lateness of each run's links."""
        incast, deep, paths = (one.values() for one in (self.incast, self.deep, self.paths))
        incasts = chain(*incast, *deep, *paths, self.whole)
        trainings = chain(*self.accuracy.values(), self.server.values(), self.ring.values())
        return [*(one.lateness for one in incasts), *(one.lateness for one in trainings)]


def measure_all(setup: Setup, context: StudyContext) -> Measurements:
    """Run all incasts and trainings.

    Raises:
        MoefabricError: The machine lacks what they need.
    """
    p = setup.loss_percent
    tcp = [transports.CUBIC, transports.DCTCP, transports.SHORT_TIMEOUT]
    ideas = [bounded_loss(p, ideas=1), bounded_loss(p)]
    lossless, show = bounded_loss(0), context.reporter.show_message
    incasts, served = partial(_incasts, setup, context), partial(_served, setup, context)
    with undisturbed():
        show("dlcp: incast")
        incast = incasts(setup.workers, [*tcp, transports.BBR, lossless, *ideas])
        deep = incasts(setup.deep_workers, [*tcp, lossless, bounded_loss(p)])
        whole = _compressed(setup, context)
        paths = incasts(setup.workers, [bounded_loss(p, ideas=2), bounded_loss(p)], 2)
        show("dlcp: training with a parameter server")
        server = {
            choice.name: served(choice, seed=1)
            for choice in [*tcp, transports.PRIORITY_TCP, ideas[0]]
        }
        accuracy = {
            percent: [served(bounded_loss(percent), 1 + n) for n in range(setup.seeds)]
            for percent in (0, p, setup.most_loss_percent)
        }
        server[bounded_loss(p).name] = accuracy[p][0]
        show("dlcp: training with a ring")
        job = setup.job(setup.ring_workers)
        ring = {}
        for choice in (transports.CUBIC, transports.DCTCP, bounded_loss(p)):
            port, iterations = setup.ring_port(choice), setup.ring_iterations
            run = partial(train_with_ring, job, choice, port, iterations)
            name = f"ring, {choice.name}"
            ring[choice.name] = context.keep(name, Progress, partial(_punctual, run))
    return Measurements(incast, deep, whole, paths, server, ring, accuracy)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Raise this thread's priority, if the system permits it: the thread acts for all hosts."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, *before)


def _incasts(
    setup: Setup,
    context: StudyContext,
    workers: int,
    choices: Sequence[TransportChoice],
    paths: int = 1,
) -> Incasts:
    """Run each transport's incast, all of them in each repeat.

    A round has equally many bytes, whatever the number of workers.
    """
    size = setup.gradient * setup.workers // workers
    gradients = _gradients(setup, workers, size)
    times: Incasts = {choice.name: [] for choice in choices}
    for seed in range(setup.repeats):
        for choice in choices:
            link = setup.link(choice, paths)
            run = partial(incast_times, choice, link, gradients, setup.rounds, seed)
            name = f"incast of {workers} over {paths}, {choice.name}, seed {seed}"
            times[choice.name].append(context.keep(name, IncastTimes, partial(_punctual, run)))
    return times


def _compressed(setup: Setup, context: StudyContext) -> tuple[IncastTimes, IncastTimes]:
    """Run cubic's incasts of whole and of compressed gradients."""
    link: LinkBehaviour = setup.link(transports.CUBIC)

    def measured(size: int) -> IncastTimes:
        gradients = _gradients(setup, setup.deep_workers, size)
        run = partial(incast_times, transports.CUBIC, link, gradients, setup.rounds)
        return context.keep(f"gradients of {size} bytes", IncastTimes, partial(_punctual, run))

    return measured(setup.whole_gradient), measured(setup.whole_gradient // COMPRESSION)


def _gradients(setup: Setup, workers: int, size: int) -> list[bytes]:
    """Return `size` bytes of each worker's first gradients, repeated as necessary."""
    gradients = Replicas(setup.job(workers), seed=1).gradients()
    return [np.resize(np.concatenate(layers), size // 4).tobytes() for layers in gradients]


def _served(setup: Setup, context: StudyContext, choice: TransportChoice, seed: int) -> Progress:
    job, link = setup.job(setup.workers), setup.link(choice)
    run = partial(train_with_server, job, choice, link, setup.iterations, seed)
    name = f"server, {choice.name}, p = {choice.loss_percent} %, seed {seed}"
    return context.keep(name, Progress, partial(_punctual, run))


def _punctual(run: Callable[[], T]) -> T:
    """Return a run with punctual links; repeat it while other work on the machine delays them."""
    for _ in range(_ATTEMPTS - 1):
        result = run()
        if result.lateness.p99_ns <= MOST_LATE_NS:
            return result
    return run()
