"""A whole pipeline file, and its sections that have no file of their own."""

import os
from pathlib import Path

from pydantic import Field, model_validator

from rayloom.config.base import Name, Resources, Section
from rayloom.config.etl import Etl
from rayloom.config.evaluation import Evaluate
from rayloom.config.features import Features
from rayloom.config.model import Model, Tabular
from rayloom.config.rollout import Rollout
from rayloom.config.training import Train
from rayloom.config.tuning import Tune


class Tracking(Section):
    """Where MLflow records. A server's credentials belong into MLFLOW_TRACKING_USERNAME and _PASSWORD, never here."""

    uri: str | None = Field(default=None, description="default: MLFLOW_TRACKING_URI, else SQLite below storage.root")
    experiment: str | None = Field(default=None, description="default: the pipeline's name")


class Serve(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    replicas: int = Field(default=1, ge=1, le=1000)
    resources: Resources = Field(default={}, description="Ray resources a replica asks for besides its CPU")
    keys: bool | None = Field(
        default=None, description="requests need an API key (rayloom keys create); default: where host is no loopback address"
    )
    max_rows: int = Field(default=10_000, ge=1, description="records in one request")
    max_batch_rows: int = Field(default=1024, ge=1, description="rows that a replica's model takes in one pass")
    max_waiting_rows: int = Field(default=20_000, ge=1, description="rows that may wait in a replica; then 503 is answered")
    timeout_s: float = Field(default=30.0, gt=0, le=3600, description="in which a request must be answered; then 503")
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    check_rows: int = Field(default=250, ge=1, description="test rows sent over HTTP and compared with the offline answers")
    tolerance: float = Field(default=1e-6, gt=0, description="how far a served probability may be from the offline one")
    follow: bool = Field(default=True, description="roll out what becomes @champion, where @champion is what was deployed")
    follow_s: float = Field(default=5.0, ge=0.5, le=3600, description="seconds between two looks at the registry")
    rollout: Rollout = Rollout()


class Storage(Section):
    root: str | None = Field(default=None, description="folder of datasets, runs and MLflow; default: RAYLOOM_HOME, else here")

    def path(self) -> Path:
        return Path(self.root or os.environ.get("RAYLOOM_HOME") or ".").resolve()


class Cluster(Section):
    autoscales: bool = Field(
        default=False, description="nodes come when work asks for them: wait instead of refusing what is not there"
    )


class Pipeline(Section):
    """A whole pipeline file."""

    name: Name
    seed: int = Field(default=17, ge=0, lt=2**31)
    storage: Storage = Storage()
    cluster: Cluster = Cluster()
    etl: Etl
    features: Features
    model: Model = Tabular()
    train: Train = Train()
    tune: Tune = Tune()
    evaluate: Evaluate = Evaluate()
    tracking: Tracking = Tracking()
    serve: Serve = Serve()

    @model_validator(mode="after")
    def _no_feature_from_the_future(self) -> "Pipeline":
        late = sorted({*self.features.columns} & {*self.features.known_after, self.features.label})
        if late:
            raise ValueError(f"features.columns has {', '.join(late)}, known only after the fact; remove it from the features")
        return self
