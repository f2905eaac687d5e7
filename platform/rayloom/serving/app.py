"""The Ray Serve application: records in, probabilities, labels and the model's version out.

    POST /predict   a JSON list of records -> {"model": {name, version}, "predictions": [answers]}
    GET  /model     the model's card: version, dataset, classes, metrics, and an example record
    GET  /healthz   200 while the replica answers

An answer is {probability: of the second class, label, unseen} for two classes, and for more {label, probability: of the label,
probabilities: {class: probability}, unseen}. `unseen` names the categories of the record whose values training saw rarely or
never; it is there only where there are some.
A replica is ready only after the bundle's golden rows gave the answers that training gave.
Not here yet: micro-batching, other protocols, rollouts.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import torch
from fastapi import FastAPI, Request
from fastapi.responses import Response
from ray import serve

from rayloom import bundle, config, tracking
from rayloom.errors import InvalidRecords
from rayloom.serving.predictor import Predictor

http = FastAPI(title="Rayloom", docs_url="/docs", redoc_url=None)


@http.exception_handler(InvalidRecords)
async def _refuse(request: Request, error: InvalidRecords) -> Response:
    return _json(error.body(), error.status)


@http.exception_handler(Exception)
async def _fail(request: Request, error: Exception) -> Response:
    return _json({"error": {"message": "the model failed on this request", "row": None, "field": None}}, 500)


def _json(body: dict, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


async def _read_body(request: Request, limit: int) -> bytes:
    """The body, read no further than its limit.

    Raises:
        InvalidRecords: 413.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise InvalidRecords(413, f"the body is over the limit of {limit:,} bytes; send the records in parts")
    return bytes(body)


def _parse_json(body: bytes):
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRecords(400, f"the body is not JSON: {error!s:.200}") from None


# Serve pickles the routes when it decorates the class: what they call has to be defined above it.
@serve.deployment
@serve.ingress(http)
class PredictService:
    """A replica: one predictor of one model version.

    Args:
        pipeline: the pipeline file; says where the registry is and what a request may hold.
        version: number of the model version to serve.

    Raises:
        RegistryError, BundleError: the replica does not become ready.
    """

    def __init__(self, pipeline: config.Pipeline, version: str):
        torch.set_num_threads(1)  # a replica is given one CPU
        self.limits = pipeline.serve
        self.version = tracking.resolve(pipeline, version)
        with TemporaryDirectory(prefix="rayloom-bundle-") as folder:
            self.predictor = Predictor(bundle.load(tracking.download(pipeline, self.version, Path(folder))))
        self.predictor.replay(pipeline.serve.tolerance)

    @http.post("/predict")
    async def predict(self, request: Request) -> Response:
        records = _parse_json(await _read_body(request, self.limits.max_body_bytes))
        if isinstance(records, list) and len(records) > self.limits.max_rows:
            raise InvalidRecords(413, f"{len(records):,} records, the limit is {self.limits.max_rows:,}; send them in parts")
        return _json({"model": self._model(), "predictions": self.predictor.answer(records)})

    @http.get("/model")
    async def model(self) -> Response:
        loaded = self.predictor.bundle
        example = loaded.golden[0].record if loaded.golden else None
        classes = list(loaded.state.classes)
        card = {"dataset": loaded.config.dataset, "classes": classes, "metrics": loaded.metrics, "example": example}
        return _json({"model": self._model(), **card})

    @http.get("/healthz")
    async def healthz(self) -> Response:
        return _json({"status": "ok", "model": self._model()})

    def _model(self) -> dict:
        return {"name": self.version.name, "version": self.version.version}


def build(pipeline: config.Pipeline, version: str) -> serve.Application:
    """The application for one model version."""
    settings = pipeline.serve
    return PredictService.options(  # type: ignore[attr-defined]  # @serve.deployment made it a Deployment
        num_replicas=settings.replicas,
        max_constructor_retry_count=1,  # a bundle that fails its golden rows once will fail them again
        ray_actor_options={"num_cpus": 1, "resources": settings.resources},
    ).bind(pipeline, version)
