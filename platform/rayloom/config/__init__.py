"""The pipeline file: `load` reads it, and its sections are plain frozen models.

What is not here: whether columns exist (`etl/check.py`) and whether the cluster has room (`cluster.py`).
"""

from rayloom.config.base import Name, Resources, Section, Share, count_bytes
from rayloom.config.etl import (
    SPLITS,
    ByHash,
    ByTime,
    Conditions,
    Deduplicate,
    Etl,
    ForeignKey,
    NearDuplicates,
    Outliers,
    Rule,
    Shares,
    Step,
)
from rayloom.config.evaluation import Evaluate, Gate
from rayloom.config.features import Category, Date, Feature, Features, Number
from rayloom.config.load import Document, check, load
from rayloom.config.model import Model, Own, Tabular, TextEncoder, Vision
from rayloom.config.pipeline import Cluster, Pipeline, Serve, Storage, Tracking
from rayloom.config.rollout import Rollout
from rayloom.config.scaling import Scaling
from rayloom.config.serving import RECORDED, Records, Tls
from rayloom.config.sources import Csv, Delta, Images, Json, Parquet, Source, Sql, Text
from rayloom.config.training import Checkpoints, Train
from rayloom.config.tuning import Param, Tune
