"""The champion of a pipeline file as a Ray Serve application, for those who deploy with Serve's own command.

serve run serve_apps.predict:app config=configs/flights.yaml
serve run serve_apps.predict:app config=configs/flights.yaml model=3
serve run --route-prefix /news serve_apps.predict:app config=configs/news.yaml      # where its serve.route is /news
"""

from pydantic import BaseModel
from ray.serve import Application

from rayloom import config, tracking
from rayloom.serving.app import build


class Arguments(BaseModel):
    """What `serve run` takes as key=value."""

    config: str = "configs/flights.yaml"
    model: str = "@champion"


def app(arguments: Arguments) -> Application:
    pipeline = config.load([arguments.config])
    follows = pipeline.serve.follow and arguments.model == f"@{tracking.CHAMPION}"
    return build(pipeline, tracking.resolve(pipeline, arguments.model).version, follows)
