"""The model as a Ray Serve application: how many replicas, of what size, under which route, and whether they sleep."""

from typing import Any

from ray import serve
from ray.serve.context import _get_global_client

from rayloom import config
from rayloom.errors import ServingError
from rayloom.serving import front
from rayloom.serving.replica import PredictService

AVERAGED_S = 12.0
"""Serve averages the requests under way over so long, and wants it to be more than 10."""

WAKE_S = 120.0
"""How long the first replica of an application that is scaled to zero may take."""


def build(pipeline: config.Pipeline, version: int, follows: bool = False) -> serve.Application:
    """The application.

    Args:
        version: number of the version that answers to begin with.
        follows: whether a moved @champion is rolled out by itself.
    """
    settings = pipeline.serve
    return PredictService.options(  # type: ignore[attr-defined]  # @serve.deployment made it a Deployment
        **replicas(settings),
        max_constructor_retry_count=1,  # a bundle that fails its golden rows once will fail them again
        max_ongoing_requests=settings.max_waiting_rows,  # our own queue is bounded, in rows
        graceful_shutdown_timeout_s=20,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus, "resources": settings.resources},
    ).bind(pipeline, version, follows)


def replicas(settings: config.Serve) -> dict[str, Any]:
    """How many there are, as Ray Serve takes it.

    Behind HAProxy each replica tells the controller of its own requests; those that wait for the first one are counted where
    they wait, in Serve's proxy.
    """
    wanted = settings.replicas
    if not isinstance(wanted, config.Scaling):
        return {"num_replicas": wanted}
    scaling = {
        "min_replicas": wanted.min,
        "max_replicas": wanted.max,
        "initial_replicas": settings.fewest,  # one at least, so that a deployment shows whether it can answer
        "target_ongoing_requests": wanted.requests,
        "upscale_delay_s": wanted.up_s,
        "downscale_delay_s": wanted.down_s,
        "look_back_period_s": AVERAGED_S,
    }
    return {"autoscaling_config": scaling}


def require_route(pipeline: config.Pipeline) -> None:
    """Sees that the model can answer where its pipeline file says; raises ServingError as `front.require` does."""
    told = _get_global_client().get_serve_details()  # type: ignore[union-attr]  # Serve's public functions say no routes
    routes = {name: one.get("route_prefix") for name, one in told["applications"].items()}
    front.require(pipeline, (told.get("http_options") or {}).get("port"), routes)


def sleeps(name: str) -> bool:
    """Whether the application is scaled to zero."""
    found = serve.status().applications.get(name)
    return found is not None and found.status == "RUNNING" and not any(one.replica_states for one in found.deployments.values())


def wake(name: str) -> None:
    """Has an application that is scaled to zero start a replica.

    Raises:
        ServingError: it does not come.
    """
    handle = serve.get_app_handle(name)
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)  # behind HAProxy Serve would have this process run an event loop
    try:
        handle.wake.remote().result(timeout_s=WAKE_S)
    except TimeoutError:
        raise ServingError(f"{name} is scaled to zero, and no replica came within {WAKE_S:g} s; see `ray status`.") from None
