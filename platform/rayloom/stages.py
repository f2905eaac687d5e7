"""The stages of a pipeline, each a function of a run: etl -> train -> evaluate -> deploy.

Each says what it does, records its seconds, and adds its figures to the run's summary.
"""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayloom import bundle, cluster, config, datasets, evaluation, features, launchers, models, tracking, training, versions
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.datasets import DatasetVersion
from rayloom.errors import ServingError
from rayloom.etl import sources
from rayloom.etl.sources import Fetched
from rayloom.runs import Run, Stage, say
from rayloom.tracking import ModelVersion
from rayloom.versions import Identity, Manifest

LEAK_ROWS = 100_000
"""Training rows that the leak check looks at, evenly spaced."""


def check_room(run: Run) -> None:
    """Refuses, before minutes of work that would be for nothing, what the cluster has no room for later.

    Raises:
        ResourceError: training or serving asks for more than there is.
    """
    launchers.find(run.pipeline.train.launcher).require_room(run.pipeline)
    _require_room_for_replicas(run.pipeline)


def _require_room_for_replicas(pipeline: config.Pipeline) -> None:
    needed = cluster.times({"CPU": 1.0, **pipeline.serve.resources}, pipeline.serve.replicas)
    cluster.require(needed, "deploy", "lower serve.replicas", pipeline.cluster)


def etl(run: Run, parent: str | None = None) -> DatasetVersion:
    """The dataset version that the pipeline file describes: found, where it was built before, else built with Spark.

    Args:
        parent: id of the version whose quarantined rows this build tries again.
    """
    root = versions.folder_of(run.pipeline, "").parent
    root.mkdir(parents=True, exist_ok=True)
    with run.stage("etl") as stage, TemporaryDirectory(prefix=".rayloom-etl-", dir=root) as scratch:
        with stage.part("fetch"):
            fetched = {name: sources.fetch(opened, Path(scratch)) for name, opened in run.files.items()}
        identity = datasets.identify(run.pipeline, fetched)
        found = datasets.find(versions.folder_of(run.pipeline, identity.id))
        stage.cached = found is not None
        dataset = found or _build(run, stage, identity, fetched, parent)
        for note in dataset.manifest.notes:
            say(f"  note: {note}")
        say(f"  {dataset.manifest.balance}")
        _summarize_dataset(run, dataset.manifest)
        return dataset


def _build(run: Run, stage: Stage, identity: Identity, fetched: dict[str, Fetched], parent: str | None) -> DatasetVersion:
    # Spark and RayDP take seconds to import: a run that finds its dataset version does without them.
    from rayloom.etl import build, handoff, session

    etl, folder = run.pipeline.etl, versions.folder_of(run.pipeline, identity.id)
    with versions.staging(folder) as place, ExitStack() as life:
        cores = session.executor_cores(run.pipeline)
        say(f"  Spark on Ray: {etl.executors} executors of {cores} CPU and {etl.executor_memory}")
        with stage.part("spark start"):
            spark = life.enter_context(
                session.spark_session(run.pipeline, f"rayloom-{run.id}", run.folder / "spark-driver.log")
            )
        with stage.part("build"):
            built = build.build(spark, run.pipeline, fetched, place)
        with stage.part("hand-off"):
            memory = handoff.in_memory(spark, place) if etl.handoff == "memory" else None
        with stage.part("spark stop"):
            life.close()
        say("  Spark stopped; reading the rows back and comparing them with what Spark counted")
        with stage.part("read back"):
            described = datasets.describe(place, list(built.splits))
        datasets.require_equal("Parquet", built.splits, described.contents)
        if memory is not None:
            datasets.require_equal("memory", built.splits, datasets.contents(memory))
        manifest = Manifest(
            **vars(identity), name=run.pipeline.name, format=versions.FORMAT, parent=parent, columns=built.columns,
            rows_in=built.rows_in, rejected=built.rejected, deduplicated=built.deduplicated, warned=built.warned,
            clipped=built.clipped, sources=built.sources, notes=built.notes + _rare(run.pipeline, place), patch=built.patch,
            splits=described.contents, statistics=described.statistics,
        )  # fmt: skip
        versions.commit(place, folder, manifest)
    return DatasetVersion(folder, manifest, memory)


def _rare(pipeline: config.Pipeline, folder: Path) -> list[str]:
    """A sentence for each class, and for each value of the splits' stratum, that misses a split."""
    from rayloom.etl import splits

    columns = [pipeline.features.label]
    if isinstance(pipeline.etl.splits, config.ByHash) and pipeline.etl.splits.stratum:
        columns.append(pipeline.etl.splits.stratum)
    return [note for one in dict.fromkeys(columns) for note in splits.rare(datasets.count_by_split(folder, one), one)]


def _summarize_dataset(run: Run, manifest: Manifest) -> None:
    run.summary["dataset"] = {
        "id": manifest.id,
        "rows_in": manifest.rows_in,
        "accepted": manifest.accepted,
        "rejected": sum(manifest.rejected.values()),
        "deduplicated": sum(manifest.deduplicated.values()),
        "splits": {name: content.rows for name, content in manifest.splits.items()},
    }


@dataclass(frozen=True)
class Trained:
    """A registered model, its bundle on this machine, and the training split as model inputs, for a baseline."""

    version: ModelVersion
    bundle: Bundle
    inputs: datasets.Encoded | None = None


def train(run: Run, dataset: DatasetVersion) -> Trained:
    """Fits features on the training split, trains, writes the bundle, and registers it as @challenger."""
    pipeline = run.pipeline
    launcher = launchers.find(pipeline.train.launcher)
    launcher.require_room(pipeline)
    with run.stage("features"):
        features.check_types(pipeline.features, datasets.schema_of(dataset.folder))
        state, warnings = datasets.fit_features(pipeline.features, dataset.split("train"))
        models.require(pipeline.model, state)
        for warning in warnings:
            say(f"  warning: {warning}")
        splits = {name: dataset.encode(state, name) for name in ("train", "validation")}
        _refuse_leaks(pipeline, state, splits["train"])
        raw = datasets.first_rows(dataset.split("validation"), training.GOLDEN_ROWS, list(state.columns))
    with run.stage("train"):
        result = launcher.launch(pipeline, state, splits, run.id)
        for metrics in result.history:
            say("  epoch {epoch}: loss {loss:.4f}, validation AUC {validation_auc:.4f}, {seconds:.1f} s".format(**metrics))
    with run.stage("register"):
        golden = [
            Golden(record=record, probability=answer) for record, answer in zip(raw, result.golden_answers(), strict=True)
        ]
        about = BundleConfig(
            name=pipeline.name,
            seed=pipeline.seed,
            dataset=dataset.manifest.id,
            model=pipeline.model,
            features=pipeline.features,
        )
        weights = result.best / "model.safetensors"
        made = bundle.write(run.folder / "bundle", about, state, weights, result.best_metrics(), golden)
        version = tracking.record_training(pipeline, run.id, dataset.manifest.id, result.history, made)
        _summarize_registry(run, version, tracking.CHALLENGER)
        return Trained(version, made, splits["train"])


def _refuse_leaks(pipeline: config.Pipeline, state, encoded: datasets.Encoded) -> None:
    sample = encoded.sample(LEAK_ROWS)
    names = state.number_names() + state.category_names()
    columns = [*sample["numbers"].T, *sample["categories"].T]
    evaluation.refuse_leaks(names, columns, sample["label"], pipeline.features.leak_auc)


def _summarize_registry(run: Run, version: ModelVersion, alias: str) -> None:
    run.summary["registry"] = {"model": version.name, "version": version.version, "alias": alias}


def load(run: Run, wanted: str) -> Trained:
    """A registered model by alias ('@challenger') or version ('3'), with its bundle on this machine."""
    version = tracking.resolve(run.pipeline, wanted)
    return Trained(version, bundle.load(tracking.download(run.pipeline, version, run.folder)))


def evaluate(run: Run, dataset: DatasetVersion, trained: Trained) -> np.ndarray:
    """Scores every test row, draws the plots, compares with the baseline, and moves @champion if the gate agrees.

    Returns:
        Probabilities float32 (n,) of the test rows in the split's order.

    Raises:
        GateError: the model is not good enough; @champion stays.
    """
    from rayloom import plots  # Matplotlib is slow to import, and only evaluation draws

    pipeline = run.pipeline
    with run.stage("evaluate"):
        cluster.require({"CPU": 1.0}, "evaluate", "join another cluster", pipeline.cluster)
        labels, probabilities = datasets.predict(trained.bundle.folder, dataset.split("test"))
        evaluation.require_both_classes(labels, "test")
        test = evaluation.score(labels, probabilities, trained.bundle.metrics["validation_threshold"])
        run.summary["test"] = {name: test[name] for name in ("auc", "average_precision", "f1", "accuracy", "n")}
        if pipeline.evaluate.baseline:
            run.summary["test"]["baseline_auc"] = _baseline(run, dataset, trained)
        drawn = plots.draw(labels, probabilities, test["threshold"], str(trained.version), run.folder)
        tracking.record_evaluation(pipeline, trained.version, {**test, **run.summary["test"]}, drawn)
        evaluation.require(pipeline.evaluate.gate, test)
        tracking.promote(pipeline, trained.version)
        _summarize_registry(run, trained.version, tracking.CHAMPION)
        return probabilities


def _baseline(run: Run, dataset: DatasetVersion, trained: Trained) -> float:
    state = trained.bundle.state
    train = trained.inputs or dataset.encode(state, "train")
    test = dataset.encode(state, "test")
    return evaluation.baseline_auc(train.read(0, train.rows), test.read(0, test.rows), run.pipeline.seed)


def deploy(run: Run, trained: Trained, dataset: DatasetVersion, offline: np.ndarray | None = None) -> str:
    """Serves the model with Ray Serve and compares its HTTP answers with the offline ones.

    Args:
        offline: probabilities of the test rows where they are known; else the bundle's predictor gives them here.

    Returns:
        The application's URL. On a cluster that this command started, the application ends with the command.

    Raises:
        ServingError: the application did not become ready, a request failed, or an answer differs.
    """
    from ray import serve

    from rayloom.serving import app

    settings = run.pipeline.serve
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with run.stage("deploy"):
        _require_room_for_replicas(run.pipeline)
        if run.local:
            # Not serve.shutdown(): it has Ray report the controller's wanted end as a failed task. The cluster ends it as well.
            run.cleanup.callback(serve.delete, run.pipeline.name)
        serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config={"enable_access_log": False})
        try:
            serve.run(app.build(run.pipeline, str(trained.version.version)), name=run.pipeline.name, route_prefix="/")
        except RuntimeError as error:
            raise ServingError(f"{trained.version} did not become ready: {_reason(run.pipeline.name) or error}") from None
        url = f"http://{settings.host}:{settings.port}"
        run.summary["serve"] = _compare(run, trained, dataset, offline, url)
        return url


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
    with httpx.Client(base_url=url, timeout=30) as client:
        responses = [client.post("/predict", json=request) for request in requests]
    ok = [response for response in responses if response.status_code == 200]
    if len(ok) < len(requests):
        bad = next(response for response in responses if response.status_code != 200)
        raise ServingError(f"{len(requests) - len(ok)} of {len(requests)} requests failed, the first with {bad.text:.300}.")
    answers = np.array([item["probability"] for response in ok for item in response.json()["predictions"]])
    difference = float(np.abs(answers - np.concatenate([expected, expected])).max())
    if not difference <= run.pipeline.serve.tolerance:
        raise ServingError(
            f"A served answer differs from the offline one by {difference:g}; the bundle or the replica is wrong."
        )
    return {"requests": len(requests), "ok": len(ok), "rows": len(records), "max_abs_diff": difference, "url": url}


def _spread_rows(dataset: DatasetVersion, columns: list[str], count: int) -> tuple[pa.Table, np.ndarray]:
    """About `count` test rows, evenly spaced, with their places in the split."""
    files = sorted((dataset.folder / "test").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(file, columns=columns) for file in files])
    places = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    return rows.take(places), places


def serve_until_interrupted(url: str) -> None:
    """Keeps this process, and with it the cluster that it started, until Ctrl-C or SIGTERM."""
    say(f"\nServing on {url} (POST /predict, GET /model, GET /docs). Ctrl-C ends it.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        say("Stopping.")
