"""MLflow: one run a training, its bundle and plots as artifacts, and the registry of model versions with aliases.

`@challenger` is the version trained last; `@champion` is the one that passed the gate and is served.
"""

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from rayloom import config
from rayloom.bundle import Bundle
from rayloom.errors import RegistryError

CHAMPION, CHALLENGER = "champion", "challenger"
DATASET_TAG = "rayloom.dataset"
OUTCOME_TAG = "rayloom.outcome"
"""'trained', or what ended the run: 'diverged' or 'failed'."""


@dataclass(frozen=True)
class ModelVersion:
    """A version in the registry.

    Attributes:
        name: the registered model, which has the pipeline's name.
        version: counted by MLflow from 1.
        run: the MLflow run that made it.
        source: where its bundle lies.
        dataset: id of the dataset version that it was trained on.
    """

    name: str
    version: int
    run: str
    source: str
    dataset: str

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


def uri(pipeline: config.Pipeline) -> str:
    """The tracking URI: the config's, else MLFLOW_TRACKING_URI, else SQLite below storage.root."""
    root = pipeline.storage.path()
    return pipeline.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root}/mlflow.db"


def without_password(text: str) -> str:
    """A URI that can be shown: user and password, where there are any, are left out."""
    return re.sub(r"//[^/@]*@", "//…@", text)


@contextmanager
def _client(pipeline: config.Pipeline) -> Iterator[MlflowClient]:
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    address = uri(pipeline)
    try:
        with _alone(address):
            yield MlflowClient(address, registry_uri=address)
    except MlflowException as error:
        raise RegistryError(
            f"MLflow at {without_password(address)} answers: {without_password(str(error)).splitlines()[0]:.300}. Check "
            f"tracking.uri, and that the server is up."
        ) from None


@contextmanager
def _alone(address: str) -> Iterator[None]:
    """Keeps other commands off an SQLite file for the length of the block: MLflow makes its tables, experiments and models by
    looking first and making then, which two at once do twice."""
    if not address.startswith("sqlite:///"):
        yield
        return
    database = Path(address.removeprefix("sqlite:///"))
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f".{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def record_failure(pipeline: config.Pipeline, run: str, dataset: str, history: list[dict], outcome: str, reason: str) -> None:
    """Records a training that did not end well, with the epochs that it has behind it.

    Args:
        outcome: 'diverged' or 'failed'.
        reason: what the user was told.
    """
    with _client(pipeline) as client:
        key = client.create_run(_experiment(client, pipeline), run_name=run).info.run_id
        tags = [RunTag(DATASET_TAG, dataset), RunTag(OUTCOME_TAG, outcome), RunTag("mlflow.note.content", reason)]
        client.log_batch(key, params=_params(pipeline), metrics=_metrics(history), tags=tags)
        client.set_terminated(key, "FAILED")


def record_training(pipeline: config.Pipeline, run: str, dataset: str, history: list[dict], bundle: Bundle) -> ModelVersion:
    """Records a finished training as one MLflow run and registers its bundle as `@challenger`.

    Args:
        run: the Rayloom run's id; becomes the MLflow run's name.
        dataset: the dataset version's id.
        history: each epoch's metrics.
    """
    with _client(pipeline) as client:
        experiment = _experiment(client, pipeline)
        entry = client.create_run(experiment, run_name=run)
        key = entry.info.run_id
        try:
            tags = [RunTag(DATASET_TAG, dataset), RunTag(OUTCOME_TAG, "trained")]
            client.log_batch(key, params=_params(pipeline), metrics=_metrics(history), tags=tags)
            client.log_artifacts(key, str(bundle.folder), "bundle")
        except BaseException:
            client.set_terminated(key, "FAILED")
            raise
        client.set_terminated(key)
        _ensure_model(client, pipeline.name)
        made = client.create_model_version(
            pipeline.name, source=f"{entry.info.artifact_uri}/bundle", run_id=key, tags={DATASET_TAG: dataset}
        )
        client.set_registered_model_alias(pipeline.name, CHALLENGER, made.version)
        return ModelVersion(pipeline.name, int(made.version), key, str(made.source), dataset)


def _experiment(client: MlflowClient, pipeline: config.Pipeline) -> str:
    name = pipeline.tracking.experiment or pipeline.name
    found = client.get_experiment_by_name(name)
    if found:
        return found.experiment_id
    # A tracking server knows where its artifacts go; a bare database does not.
    is_server = uri(pipeline).startswith(("http://", "https://", "databricks"))
    location = None if is_server else (pipeline.storage.path() / "mlartifacts").as_uri()
    return client.create_experiment(name, artifact_location=location)


def _ensure_model(client: MlflowClient, name: str) -> None:
    if not client.search_registered_models(f"name = '{name}'", max_results=1):
        client.create_registered_model(name)


def _params(pipeline: config.Pipeline) -> list[Param]:
    """What decides the model, flattened to dotted keys. Paths and addresses are left out: they may hold secrets."""
    deciding = pipeline.model_dump(include={"seed", "features", "model", "train"}, mode="json")
    return [Param(key, str(value)[:6000]) for key, value in _flatten(deciding)]


def _flatten(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _metrics(history: list[dict]) -> list[Metric]:
    return [
        Metric(name, value, 0, int(metrics["epoch"]))
        for metrics in history
        for name, value in metrics.items()
        if name != "epoch"
    ]


def record_evaluation(
    pipeline: config.Pipeline, version: ModelVersion, test: dict[str, float], plots: list[Path], files: list[Path]
) -> None:
    """Adds test metrics (as `test_…`), plots, and files about the evaluation to the run that made the version."""
    with _client(pipeline) as client:
        client.log_batch(version.run, metrics=[Metric(f"test_{name}", value, 0, 0) for name, value in test.items()])
        for folder, paths in {"plots": plots, "evaluation": files}.items():
            for path in paths:
                client.log_artifact(version.run, str(path), folder)


def resolve(pipeline: config.Pipeline, wanted: str) -> ModelVersion:
    """The version that an alias ('@champion') or a number ('3') means.

    Raises:
        RegistryError: there is no such alias or version.
    """
    with _client(pipeline) as client:
        try:
            if wanted.startswith("@"):
                found = client.get_model_version_by_alias(pipeline.name, wanted[1:])
            else:
                found = client.get_model_version(pipeline.name, wanted)
        except MlflowException:
            raise RegistryError(
                f"The registry at {without_password(uri(pipeline))} has no model {pipeline.name} {wanted}; train one with "
                f"jobs.train, or name a version that is there."
            ) from None
        return ModelVersion(
            pipeline.name, int(found.version), str(found.run_id), str(found.source), found.tags.get(DATASET_TAG, "")
        )


def champion(pipeline: config.Pipeline) -> ModelVersion | None:
    """The version that is `@champion`; None where there is none yet."""
    with _client(pipeline) as client:
        found = client.search_registered_models(f"name = '{pipeline.name}'", max_results=1)
    version = found[0].aliases.get(CHAMPION) if found else None
    return resolve(pipeline, str(version)) if version else None


def promote(pipeline: config.Pipeline, version: ModelVersion) -> None:
    """Points `@champion` at the version."""
    with _client(pipeline) as client:
        client.set_registered_model_alias(version.name, CHAMPION, str(version.version))


def download(pipeline: config.Pipeline, version: ModelVersion, folder: Path) -> Path:
    """The version's bundle on this machine: where it lies, if that is a local folder, else a copy below `folder`."""
    target = None if version.source.startswith(("file:", "/")) else str(folder)
    with _client(pipeline):
        found = mlflow.artifacts.download_artifacts(artifact_uri=version.source, dst_path=target, tracking_uri=uri(pipeline))
    return Path(found)


def record_report(pipeline: config.Pipeline, run: str, dataset: str, figures: dict[str, float], files: list[Path]) -> None:
    """Records a report, such as of a comparison of launchers, as an MLflow run of its own in the pipeline's experiment.

    Args:
        run: the Rayloom run's id; becomes the MLflow run's name.
        dataset: the dataset version's id.
    """
    with _client(pipeline) as client:
        entry = client.create_run(_experiment(client, pipeline), run_name=run)
        key = entry.info.run_id
        metrics = [Metric(name, value, 0, 0) for name, value in figures.items()]
        client.log_batch(key, params=_params(pipeline), metrics=metrics, tags=[RunTag(DATASET_TAG, dataset)])
        for file in files:
            client.log_artifact(key, str(file), "report")
        client.set_terminated(key)
