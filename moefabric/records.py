"""Records: what was seen. Flow records from the agents, phases of a change of light, collectives and iterations."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FlowRecord:
    """How one flow of a collective went. Times are CLOCK_MONOTONIC nanoseconds on the experiment's clock; bytes are those really sent.

    `ok` says that every byte arrived, once, in order and unchanged; `why` says what did not.
    """

    collective: int
    src: str
    dst: str
    path: str
    bytes: int
    rate_bps: float | None
    first_sent_ns: int
    last_sent_ns: int
    first_received_ns: int
    last_received_ns: int
    retransmits: int
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Phases:
    """Wall seconds of one reconfiguration, phase by phase, on the controller's clock; `settle_s` is the OCS's and the optics' own time."""

    demand_s: float = 0.0
    plan_s: float = 0.0
    divert_s: float = 0.0
    command_s: float = 0.0
    settle_s: float = 0.0
    verify_s: float = 0.0
    admit_s: float = 0.0
    total_s: float = 0.0
