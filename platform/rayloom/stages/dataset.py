"""Stage `etl`: the dataset version that a pipeline file describes, found or built with Spark."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rayloom import config, datasets, versions
from rayloom.datasets import DatasetVersion
from rayloom.etl import sources
from rayloom.etl.sources import Fetched
from rayloom.runs import Run, Stage, say
from rayloom.versions import Identity, Manifest


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
            cells = sum(one.rows * len(one.opened.types) for one in fetched.values())
            log = run.folder / "spark-driver.log"
            spark = life.enter_context(session.spark_session(run.pipeline, f"rayloom-{run.id}", log, cells))
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
