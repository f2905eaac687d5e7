"""The cluster's one front: HAProxy on one port, which sends each path to the application whose route it begins with."""

from collections.abc import Mapping

from rayloom import config
from rayloom.errors import ServingError


def require(pipeline: config.Pipeline, port: int | None, routes: Mapping[str, str | None]) -> None:
    """Sees that the model can answer where its pipeline file says.

    Args:
        port: where the front listens.
        routes: of all applications on the cluster, by name.

    Raises:
        ServingError: the front listens elsewhere, another application has the route, or this one has had another until now.
    """
    settings, name = pipeline.serve, pipeline.name
    if port not in (None, settings.port):
        raise ServingError(
            f"serve.port is {settings.port}, and this cluster answers for all its models on port {port}; write that, and a "
            f"serve.route of its own for each model."
        )
    if routes.get(name) not in (None, settings.route):
        raise ServingError(
            f"serve.route is {settings.route}, and {name} answers at {routes[name]} on this cluster; write that, or deploy it "
            f"anew after `serve shutdown`."
        )
    for other, route in routes.items():
        if other != name and route == settings.route:
            raise ServingError(
                f"serve.route is {route}, where {other} answers on this cluster; give {name} another, such as /{name}."
            )
