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
from rayloom.config.scaling import Replicas, Route, Scaling
from rayloom.config.serving import RECORDED, Records, Tls
from rayloom.config.training import Train
from rayloom.config.tuning import Tune


class Tracking(Section):
    """Where MLflow records. A server's credentials belong into MLFLOW_TRACKING_USERNAME and _PASSWORD, never here."""

    uri: str | None = Field(default=None, description="default: MLFLOW_TRACKING_URI, else SQLite below storage.root")
    experiment: str | None = Field(default=None, description="default: the pipeline's name")


class Serve(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    route: Route = Field(default="/", description="where the application's paths begin, such as /news for /news/predict")
    replicas: Replicas = Field(default=1, description="how many, or by the load: {min: 1, max: 8}")
    cpus: float = Field(
        default=1.0,
        gt=0,
        le=1024,
        description="of a replica; a model of texts or images computes so many passes at once. "
        "Below 1, replicas share one: 0.25",
    )
    gpus: float = Field(
        default=0.0, ge=0, le=1, description="of a replica, whose model computes there; 0.25: four replicas share a GPU"
    )
    resources: Resources = Field(default={}, description="Ray resources a replica asks for besides its CPUs")
    keys: bool | None = Field(
        default=None, description="requests need an API key (rayloom keys create); default: where host is no loopback address"
    )
    tls: Tls | None = Field(default=None, description="HTTPS instead of HTTP")
    max_rows: int = Field(default=10_000, ge=1, description="records in one request")
    max_batch_rows: int = Field(default=1024, ge=1, description="rows that a replica's model takes in one pass")
    max_batch_tokens: int = Field(
        default=16_384, ge=1, description="tokens, with padding, in one pass of a model of texts on a GPU; a CPU takes fewer"
    )
    max_waiting_rows: int = Field(default=20_000, ge=1, description="rows that may wait in a replica; then 503 is answered")
    timeout_s: float = Field(default=30.0, gt=0, le=3600, description="in which a request must be answered; then 503")
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    check_rows: int = Field(default=250, ge=1, description="test rows sent over HTTP and compared with the offline answers")
    tolerance: float = Field(default=1e-6, gt=0, description="how far a served probability may be from the offline one")
    follow: bool = Field(default=True, description="roll out what becomes @champion, where @champion is what was deployed")
    follow_s: float = Field(default=5.0, ge=0.5, le=3600, description="seconds between two looks at the registry")
    records: Records = Records()
    rollout: Rollout = Rollout()

    @property
    def threads(self) -> int:
        """Of a replica's model."""
        return max(1, int(self.cpus))

    @property
    def fewest(self) -> int:
        """Replicas that there are at least, once one is up."""
        return max(1, self.replicas.min) if isinstance(self.replicas, Scaling) else self.replicas


class Storage(Section):
    root: str | None = Field(default=None, description="folder of datasets, runs and MLflow; default: RAYLOOM_HOME, else here")

    def path(self) -> Path:
        return Path(self.root or os.environ.get("RAYLOOM_HOME") or ".").resolve()


class Cluster(Section):
    autoscales: bool = Field(
        default=False, description="nodes come when work asks for them: wait instead of refusing what is not there"
    )
    # A job's own stages follow each other within a second of Ray's counting what is free.
    wait_s: float = Field(
        default=5.0, ge=1, le=7 * 86400, description="seconds that a stage waits for what others hold before it is refused"
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

    @model_validator(mode="after")
    def _no_feature_like_what_is_recorded(self) -> "Pipeline":
        taken = sorted({*self.features.columns} & {*RECORDED})
        if taken and self.serve.records.share:
            raise ValueError(f"features.columns has {', '.join(taken)}, as serve.records names what it adds; name it otherwise")
        return self
