"""What a replica says over HTTP: a raw ASGI application, without Ray.

    POST /predict                    a JSON list of records, or an Arrow stream
    POST /invocations                MLflow's scoring protocol, with GET /ping and /version
    POST /v2/models/{m}/infer        the Open Inference Protocol v2, with its health and metadata
    POST /feedback                   {"version": 3, "reward": 0.5}: what an answer was worth, for strategy bandit
    GET  /                           a page for people: the model, a form, its answers
    GET  /model                      the model's card: version, dataset, classes, metrics, and an example record
    GET  /plan                       which version answers, and why
    GET  /openapi.json               this, as the model's own schema has it
    GET  /healthz, /readyz           200 while the process lives; while it can answer
    GET  /metrics                    requests, failures and latencies by version, for Prometheus

With serve.route, all of them begin with it: /news/predict.

An error is JSON with a sentence, and names row and field where one is at fault; what fails inside of us is told to the log, not
to the client.
"""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version as version_of
from types import ModuleType
from typing import Any, NamedTuple

import orjson

from rayloom.errors import InvalidRecords
from rayloom.serving import metrics, openapi, page
from rayloom.serving.keys import OPEN, Keys, Refused, given
from rayloom.serving.protocols import PROTOCOLS, Headers, Reply, inference, records, request_id
from rayloom.serving.reception import ClientGone, Receive, Reception, Visit
from rayloom.serving.versions import Versions

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = logging.getLogger("rayloom.serving")

JSON = [(b"content-type", b"application/json")]
TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
RETRY_AFTER = (b"retry-after", b"1")
CLOSE = (b"connection", b"close")


class Response(NamedTuple):
    """A status, and what is said with it."""

    status: int
    reply: Reply


def json(content: Any, status: int = 200, headers: list[tuple[bytes, bytes]] = []) -> Response:
    return Response(status, Reply(orjson.dumps(content), JSON + headers))


def text(content: str, status: int = 200) -> Response:
    return Response(status, Reply(content.encode(), TEXT))


class Application:
    """The ASGI application of one replica.

    Args:
        versions: what it answers with.
        keys: who may ask; None for everybody.
    """

    def __init__(self, versions: Versions, keys: Keys | None = None):
        self.versions, self.keys = versions, keys
        self.root = versions.settings.route.rstrip("/")
        self.reception = Reception(versions.settings.max_body_bytes, versions.settings.timeout_s)
        self.pages: dict[str, Callable[[Headers], Response]] = {
            "/": self.front,
            "/model": lambda _: json(self.card()),
            "/plan": lambda _: json(self.plan()),
            "/openapi.json": lambda _: json(self.document()),
            "/healthz": lambda _: json({"status": "ok", "model": self.model()}),
            "/readyz": lambda _: json({"ready": versions.is_ready, "model": self.model()}, self.ready),
            "/ping": lambda _: text("", self.ready),
            "/version": lambda _: text(version_of("mlflow")),
            "/metrics": lambda _: text(self.metrics()),
            "/v2": lambda _: json(inference.server(version_of("rayloom"))),
            "/v2/health/live": lambda _: json(inference.live()),
            "/v2/health/ready": lambda _: json(inference.ready(versions.is_ready), self.ready),
            "/v2/models/{m}/": lambda _: json(inference.metadata(versions.stable.predictor.schema, versions.stable.model)),
            "/v2/models/{m}/ready": lambda _: json({"ready": versions.is_ready}, self.ready),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # else the server would call it a failure of ours
        if scope["type"] != "http":
            return
        headers: Headers = dict(scope["headers"])
        path = scope["path"].removeprefix(self.root)
        if not path:  # the page names its own paths from its folder on
            await respond(send, Response(307, Reply(b"", [(b"location", f"{self.root}/".encode())])))
            return
        target = inference.target(path)
        path = "/v2/models/{m}/" + target.verb if target else path
        protocol: ModuleType = PROTOCOLS.get(path, inference if path.startswith("/v2") else records)
        try:
            self.admit(path, headers)
            number = self.wanted(target) if target else None
            response = await self.answer(scope["method"], path, number, headers, receive)
        except ClientGone:
            return
        except InvalidRecords as error:
            response = json(protocol.refuse(error), error.status, said_with(error, path))
        except Exception:
            logger.exception("the model failed on request %s", request_id(headers))
            response = json(protocol.refuse(InvalidRecords(500, "the model failed on this request")), 500)
        await respond(send, response)

    async def answer(self, method: str, path: str, number: int | None, headers: Headers, receive: Receive) -> Response:
        """What is said to a request that may ask.

        Args:
            path: with {m} for the model's name.
            number: of the version that is asked for; None for the plan's choice.

        Raises:
            InvalidRecords: it cannot be answered.
        """
        if takes_post(path):
            if method != "POST":
                raise InvalidRecords(405, f"{path} takes POST, not {method:.20}")
            with Visit(self.reception, receive) as visit:
                body = await visit.read(headers)
                if path == "/feedback":
                    return json(self.take_feedback(records.loads(body)))
                return Response(200, await self.versions.reply(PROTOCOLS[path], body, headers, number))
        if path not in self.pages:
            known = ", ".join([*PROTOCOLS, "/feedback", *self.pages])
            raise InvalidRecords(404, f"there is no {path[:80]!a} here; there are {known}")
        if method not in ("GET", "HEAD"):
            raise InvalidRecords(405, f"{path} takes GET, not {method:.20}")
        return self.pages[path](headers)

    def admit(self, path: str, headers: Headers) -> None:
        """Raises Refused where a key is needed and there is none that may ask now. The front page asks for one itself."""
        if self.keys is None or path in OPEN or (path == "/" and given(headers) is None):
            return
        self.keys.check(headers, time.time())

    @property
    def ready(self) -> int:
        """The status of what tells whether the replica can answer."""
        return 200 if self.versions.is_ready else 503

    def front(self, headers: Headers) -> Response:
        """The page for people: the model, a form, and its answers."""
        if self.keys is not None and given(headers) is None:
            html = page.locked(self.versions.name)
        else:
            html = page.html(self.versions.stable.predictor.schema, self.card(), self.plan())
        return Response(200, Reply(html.encode(), page.headers()))

    def wanted(self, target: inference.Target) -> int | None:
        """The version that a v2 path names; None where it names none.

        Raises:
            InvalidRecords: 404 for another model, or a version that is not held.
        """
        if target.model != self.versions.name:
            raise InvalidRecords(404, f"there is no model {target.model[:80]!a} here, but {self.versions.name}")
        if target.version is None:
            return None
        held = {str(number): number for number in self.versions.held}
        if target.version not in held:
            raise InvalidRecords(404, f"version {target.version[:20]!a} is not served; there are {', '.join(held)}")
        return held[target.version]

    def take_feedback(self, given: Any) -> dict:
        """Counts a reward."""
        if not isinstance(given, dict) or type(given.get("version")) is not int or given["version"] not in self.versions.held:
            raise InvalidRecords(422, f"expected an object with 'version', one of {', '.join(map(str, self.versions.held))}")
        reward = given.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
            raise InvalidRecords(422, "expected 'reward', a number from 0 to 1")
        self.versions.counts[given["version"]].rewarded(float(reward))
        return {"counted": True}

    def model(self) -> dict[str, Any] | None:
        """The version that answers; None while none does."""
        if not self.versions.is_ready:
            return None
        stable = self.versions.stable.model
        return {"name": stable.name, "version": stable.version}

    def card(self) -> dict[str, Any]:
        """What is known of the version that answers."""
        loaded = self.versions.stable.predictor.bundle
        example = loaded.golden[0].record if loaded.golden else None
        classes = list(loaded.state.classes)
        return {
            "model": self.model(), "dataset": loaded.config.dataset, "classes": classes, "metrics": loaded.metrics,
            "example": example, "label": loaded.state.label,
        }  # fmt: skip

    def metrics(self) -> str:
        """What is counted, for Prometheus."""
        kept = self.versions.capture
        told = metrics.exposition(self.versions.name, self.versions.counts)
        return told if kept is None else told + kept.exposition(self.versions.name)

    def document(self) -> dict[str, Any]:
        """This, as the model's own schema has it."""
        held, schema = list(self.versions.held), self.versions.stable.predictor.schema
        made = openapi.document(schema, self.card(), self.versions.limits, held, self.keys is not None)
        return {**made, "servers": [{"url": self.root}]} if self.root else made

    def plan(self) -> dict[str, Any]:
        plan = self.versions.plan
        return plan.model_dump(include={"strategy", "stable", "candidate", "share", "step", "state", "reason"}) if plan else {}


def takes_post(path: str) -> bool:
    return path in PROTOCOLS or path == "/feedback"


def said_with(error: InvalidRecords, path: str) -> list[tuple[bytes, bytes]]:
    """The headers that HTTP wants an error to have."""
    if isinstance(error, Refused):
        return error.headers
    allowed = (b"allow", b"POST" if takes_post(path) else b"GET, HEAD")
    said = {405: [allowed], 408: [CLOSE], 503: [RETRY_AFTER]}
    return said.get(error.status, [])


async def respond(send: Send, response: Response) -> None:
    status, reply = response
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
