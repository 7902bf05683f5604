"""Sizes and rates of the study."""

from pydantic import Field

from moefabric.api.links import LinkBehaviour
from moefabric.api.plugins import ByteSize, DurationNs, Rate, Section, quantity_field
from moefabric_studies.systems.dlcp.training import TrainingJob
from moefabric_studies.systems.dlcp.transports import TransportChoice


class Setup(Section):
    """The link, the incast and the training."""

    rate: Rate = quantity_field("100Mb/s")
    """Rate of the server's link."""
    queue: ByteSize = quantity_field("64kB")
    """Room of the link's queue, bytes."""
    round_trip: DurationNs = quantity_field("1ms")
    """Propagation delay of a round trip."""
    threshold: ByteSize = quantity_field("30kB")
    """Backlog from which packets are marked or dropped early: DCTCP's 20 packets."""
    loss_percent: int = Field(default=10, ge=1, le=50)
    """Share p of a gradient that may be lost, per cent."""
    most_loss_percent: int = Field(default=30, ge=1, le=99)
    """Share at which the paper expects more iterations, per cent."""
    workers: int = Field(default=8, ge=2)
    """Workers of a parameter server."""
    deep_workers: int = Field(default=32, ge=2)
    """Workers of a deep incast."""
    gradient: ByteSize = quantity_field("32kB")
    """Bytes of a worker's gradient in an incast; of more workers proportionally less."""
    whole_gradient: ByteSize = quantity_field("64kB")
    """Bytes of a gradient that is compared with one of 1/16 of the bytes."""
    rounds: int = Field(default=40, ge=1)
    """Rounds of an incast in each repeat."""
    repeats: int = Field(default=3, ge=1)
    """Repeats of an incast; the transports take turns."""
    iterations: int = Field(default=60, ge=1)
    """Iterations of training."""
    seeds: int = Field(default=2, ge=1)
    """Trainings whose accuracy is compared."""
    target_accuracy: float = Field(default=0.85, gt=0, lt=1)
    """Accuracy to which iterations are counted."""
    layers: tuple[int, ...] = (48, 96, 96, 96, 10)
    """Width of the model's input and of each layer."""
    batch: int = Field(default=256, ge=8)
    """Samples of all workers and an iteration."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Learning rate of gradient descent with momentum."""
    backward: DurationNs = quantity_field("20ms")
    """Time that a GPU would need for the backward pass."""
    forward: DurationNs = quantity_field("10ms")
    """Time that a GPU would need for the forward pass."""
    ring_workers: int = Field(default=4, ge=2)
    """Workers of a ring."""
    ring_rate: Rate = quantity_field("25Mb/s")
    """Rate of each worker's port in a ring."""
    ring_iterations: int = Field(default=40, ge=1)
    """Iterations with a ring."""

    def link(self, choice: TransportChoice, paths: int = 1) -> LinkBehaviour:
        """Return the server's link as a transport asks for it."""
        return choice.port(self.rate, self.queue, self.round_trip // 2, self.threshold, paths)

    def ring_port(self, choice: TransportChoice) -> LinkBehaviour:
        """Return a worker's port in a ring as a transport asks for it."""
        # A round trip passes two ports.
        return choice.port(self.ring_rate, self.queue, self.round_trip // 2, self.threshold)

    def job(self, workers: int) -> TrainingJob:
        """Return the training of a number of workers."""
        return TrainingJob(
            sizes=self.layers,
            workers=workers,
            batch=self.batch // workers,
            learning_rate=self.learning_rate,
            backward_s=self.backward / 1e9,
            forward_s=self.forward / 1e9,
        )
