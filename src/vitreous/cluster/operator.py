"""The command's hand on the cluster: an actor that starts Ray Serve, and deploys, watches and removes the service.

It ends with the command; Ray Serve and the application do not, unless they are removed.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from vitreous.cluster.room import Room
from vitreous.errors import first_line
from vitreous.serve.settings import Settings

__all__ = ["NAMESPACE", "OPERATOR", "Operator", "State"]

OPERATOR = "vitreous-serve"
"""The name of the actor, and of the application that it deploys."""
NAMESPACE = "vitreous"
"""The namespace of the actor's name."""

_DEPLOYMENT = "service"
_HEALTH_PERIOD = 5.0  # seconds between looks at a replica's health
_LAST_RESORT = 10.0  # seconds beyond the limits after which a proxy gives a request up
_DRAINING = 5.0  # seconds beyond the time of a request in which a replica must end
_POLL = 0.25  # seconds


class State(NamedTuple):
    """What became of the application."""

    is_ready: bool
    """Whether every replica answers, and none is of an application before this one."""
    running: int
    """Replicas that answer."""
    failures: list[tuple[str, int]]
    """Why replicas could not begin since the last call, each with its exit code."""
    problem: str
    """Why Ray Serve has given up, or nothing."""


class Operator:
    """The methods of the actor. Those that fail for the user return the reason, which is nothing otherwise."""

    def __init__(self) -> None:
        self._failures: list[tuple[str, int]] = []
        self._has_started_serve = False

    def open(self, settings: Settings) -> str:
        """Have Ray Serve listen, unless it does."""
        from ray import serve
        from ray.serve.context import _get_global_client

        from vitreous.cluster.proxy import IMPORT_PATH

        client = _get_global_client(raise_if_no_controller_running=False)
        if client is not None:
            there = client.http_config
            if (there.host, there.port) == (settings.host, settings.port):
                return ""
            return (
                f"cannot listen on {settings.host} port {settings.port}: Ray Serve of this cluster listens on "
                f"{there.host} port {there.port}; name these with --host and --port, or end it with `serve shutdown`"
            )
        limits = settings.limits
        self._has_started_serve = True
        try:
            serve.start(
                proxy_location="EveryNode",
                http_options={
                    "host": settings.host,
                    "port": settings.port,
                    "request_timeout_s": limits.seconds + limits.body_seconds + _LAST_RESORT,
                    "keep_alive_timeout_s": round(limits.idle_seconds),
                },
                logging_config={"enable_access_log": False},
                controller_options={
                    "runtime_env": {"env_vars": {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": IMPORT_PATH}}
                },
            )
        except Exception as error:
            serve.shutdown()
            reason = first_line(getattr(error, "cause", None) or error).rstrip(".")
            return (
                f"cannot listen on {settings.host} port {settings.port}: {reason}; name another with --port or --host"
            )
        return ""

    def has_own_proxies(self) -> bool:
        """Return whether this command has started Ray Serve, and with it the proxies."""
        return self._has_started_serve

    def deploy(self, settings: Settings, room: Room) -> str:
        """Have Ray Serve start the replicas, in place of those that a killed command has left."""
        from ray import serve
        from ray.serve.api import RunTarget, run_many

        from vitreous.cluster.replica import Replica

        limits = settings.limits
        deployment = serve.deployment(
            name=_DEPLOYMENT,
            num_replicas=room.workers,
            ray_actor_options=room.resources,
            # Each replica refuses what is too much for it; Ray Serve is not to queue before that.
            max_ongoing_requests=limits.connections,
            max_queued_requests=limits.connections,
            backpressure_config={"status_code": 429, "retry_after_s": 1},
            health_check_period_s=_HEALTH_PERIOD,
            graceful_shutdown_wait_loop_s=_POLL,
            graceful_shutdown_timeout_s=limits.seconds + _DRAINING,
            logging_config={"enable_access_log": False},
        )(serve.ingress()(Replica))
        replicas = deployment.bind(settings, room.threads, (OPERATOR, NAMESPACE))
        target = RunTarget(replicas, name=OPERATOR, route_prefix="/")
        try:
            run_many([target], wait_for_applications_running=False)
        except Exception as error:
            reason = first_line(getattr(error, "cause", None) or error)
            return f"Ray Serve does not take the service ({reason}): remove what is in its way, or use another cluster"
        return ""

    def failed(self, reason: str, code: int) -> None:
        """Take word of a replica that it cannot begin."""
        self._failures.append((reason, code))

    def state(self) -> State:
        """Return what became of the application."""
        from ray import serve

        failures, self._failures = self._failures, []
        application = serve.status().applications.get(OPERATOR)
        if application is None:
            return State(False, 0, failures, "its application was removed from the cluster")
        deployment = application.deployments.get(_DEPLOYMENT)
        states = deployment.replica_states.items() if deployment is not None else ()
        running = sum(count for state, count in states if state == "RUNNING")
        problem = " ".join(application.message.split()) if application.status == "DEPLOY_FAILED" else ""
        return State(application.status == "RUNNING", running, failures, problem)

    def remove(self, seconds: float) -> None:
        """Remove the application after its last request, and Ray Serve if this command has started it for itself."""
        from ray import serve

        end = time.monotonic() + seconds + _DRAINING
        if OPERATOR in serve.status().applications:
            serve.delete(OPERATOR, _blocking=False)
        while OPERATOR in serve.status().applications and time.monotonic() < end:
            time.sleep(_POLL)
        if self._has_started_serve and not serve.status().applications.keys() - {OPERATOR}:
            serve.shutdown()
