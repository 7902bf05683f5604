"""Northbound interface of a controller: JSON over HTTP/1.1 on connections that stay open.

| Request          | Fields of the request            | Fields of the reply                      |
|------------------|----------------------------------|------------------------------------------|
| `GET /health`    |                                  | region, ready, switches, expected, ocs,  |
|                  |                                  | fault                                    |
| `GET /circuits`  |                                  | circuits, dark, requested                |
| `GET /rules`     |                                  | rules: switch, to, out, path, light      |
| `GET /counters`  |                                  | by switch: rule, packets, bytes          |
| `GET /failures`  | query: after, wait (optional)    | version, failures, circuits              |
| `GET /relays`    |                                  | region, relays                           |
| `GET /statistics` |                                 | requests, failed, phases, ready, rules,  |
|                  |                                  | lost_light                               |
| `POST /demand`   | demand, policy, servers,         | plan, circuits_before/after, dark, phases |
|                  | all_to_alls, plan_limit_s        |                                          |
| `POST /light`    | circuits, or as for `/demand`    | as of `/demand`                          |
| `POST /relay`    | region, relays                   | relays of all regions                    |

Circuits are names such as `s0/o0~s3/o2`; bytes and seconds of plans are the model's.

| Field              | Meaning                                                                     |
|--------------------|-----------------------------------------------------------------------------|
| region             | Name of the region; null for the EPS's controller                           |
| ready              | Whether all switches have confirmed their rules and the OCS has answered    |
| switches, expected | Connected switches, and all switches of the controller                      |
| ocs                | Whether the OCS has answered; null where there is none                      |
| fault              | Why traffic isn't on the lit circuits yet, if that has failed               |
| lasts              | Whether waiting doesn't help, as the OCS is another one or refuses the login|
| circuits           | Reply: circuits that carry traffic. Request: exactly the circuits to light. |
|                    | In `/failures`, null while a controller that starts doesn't know them       |
| dark               | Requested circuits that carried no frame, or that have lost their light; in |
|                    | replies to `POST`, also those whose NIC is out                              |
| dark_why           | Why, for dark circuits that couldn't be tried; by circuit                   |
| requested          | Circuits of the last request, also those that a failure keeps dark; they    |
|                    | return when it is cleared                                                   |
| lost_light         | Number of circuits that have lost their light since the controller's start  |
| after, wait        | Reply once the version is later, or after so many seconds (at most 30)      |
| failures           | Fields of `recovery.failure_history.FailureReport`                          |
| demand             | Rows of bytes, from the row's server to the column's                        |
| policy             | Name of the planning policy, or module:Name; `mixnet` by default            |
| plan_limit_s       | Seconds that a policy of another package may take; 5 by default, 20 at most |
| servers            | Servers of rows and columns; the region's by default                        |
| all_to_alls        | Fields of `moefabric.planner.horizon.Horizon`, optional                     |
| circuits_before    | Circuits that carried traffic before the request                            |
| circuits_after     | Circuits that carry traffic now                                             |
| relays             | The peer that forwards for each server without electrical NICs              |
| policy_fault       | Why a policy of another package failed, so that its bytes take the EPS      |
| plan               | null if circuits were requested by name                                     |
| plan.policy        | Name of the policy                                                          |
| plan.circuits      | Matrix: number of circuits of each pair of servers                          |
| plan.leftover_ports | Optical NICs of each server that end no circuit                            |
| plan.split         | Bytes of each pair over circuits and EPS: from, to, light_bytes, eps_bytes  |
| plan.predicted_s   | Completion time by the fluid model; null if a pair has no path              |
| plan.bound_s       | Completion time that no network with these NICs can beat                    |
| phases             | Fields of `moefabric.core.transition.ReconfigurationPhases`, wall seconds   |

The header `baggage` (W3C Baggage) may have ids such as `reconfiguration=1f2e`, for the log.

An error is `{"error": "one line"}` with status 400 (malformed request), 404 (unknown path), 405
(wrong method), 503 (a device failed) or 500 (a fault of the controller).
`moefabric.controller.service.http_handler` says which requests are refused with 401, 403, 411, 413,
415 or 421.
"""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from moefabric.controller.service.controller import Controller
from moefabric.core.errors import ControlError, MoefabricError, SpecError

_LONGEST_WAIT_S: Final = 30.0

Response = tuple[HTTPStatus, Mapping[str, Any]]
"""Status and JSON document."""

log = logging.getLogger(__name__)


def respond(
    controller: Controller, method: str, target: str, body: bytes, started_s: float
) -> Response:
    """Execute a request and return the response.

    Args:
        target: Path and query.
        started_s: When the request began to arrive, on the controller's clock.
    """
    path, _, query = target.partition("?")
    routes: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
        "/health": ("GET", controller.health),
        "/circuits": ("GET", controller.circuits),
        "/rules": ("GET", controller.rules),
        "/counters": ("GET", controller.counters),
        "/relays": ("GET", controller.relays),
        "/statistics": ("GET", controller.statistics_reply),
        "/failures": ("GET", lambda: controller.failures(*_wait_parameters(query))),
        "/demand": ("POST", lambda: controller.demand(_json_object(body), started_s)),
        "/light": ("POST", lambda: controller.light(_json_object(body), started_s)),
        "/relay": ("POST", lambda: controller.announce_relays(_json_object(body))),
    }
    if path not in routes:
        controller.statistics.count_request("other", HTTPStatus.NOT_FOUND)
        return HTTPStatus.NOT_FOUND, {"error": f"{path}: there are {' '.join(routes)}"}
    expected, reply = routes[path]
    if method != expected:
        response: Response = HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"{path} is for {expected}"}
    else:
        response = _executed(reply, f"{method} {path}")
    controller.statistics.count_request(path, response[0])
    return response


def _executed(reply: Callable[[], dict[str, Any]], request: str) -> Response:
    try:
        return HTTPStatus.OK, reply()
    except SpecError as error:
        status, fault = HTTPStatus.BAD_REQUEST, str(error)
    except ControlError as error:
        status, fault = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    except MoefabricError as error:
        status, fault = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
    except Exception:  # a programming error costs one response, not the controller
        log.exception("%s failed", request)
        fault = "the controller failed; its log says where"
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    return status, {"error": "; ".join(fault.splitlines())}


def _wait_parameters(query: str) -> tuple[int | None, float]:
    """Return `after` and `wait` of a query; raise SpecError if they are not numbers."""
    fields = dict(parse_qsl(query))
    try:
        after = int(fields["after"]) if "after" in fields else None
        wait_s = float(fields.get("wait", _LONGEST_WAIT_S))
    except ValueError as error:
        raise SpecError([("failures", f"after and wait are numbers: {error}")]) from error
    if not wait_s >= 0:
        raise SpecError([("failures", f"wait is a number of seconds, not {wait_s:g}")])
    return after, min(wait_s, _LONGEST_WAIT_S)


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SpecError([("", f"not JSON: {error}")]) from error
    if not isinstance(document, dict):
        raise SpecError([("", "a JSON object is needed")])
    return document
