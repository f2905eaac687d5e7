"""A sweep's runs in MLflow: written by one process for many, once each, also when sent twice or after a restart."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from mlflow import MlflowClient
from mlflow.entities import Run

from rayloom import config, recorder, tracking
from rayloom.errors import RegistryError
from rayloom.metric_names import decode, encode
from rayloom.recorder import Recorder
from tests.conftest import wait_for
from tests.contract.conftest import TOY
from tests.unit.conftest import merged

WRITERS, POINTS = 64, 50
NEVER = 1e6
"""Seconds to wait: nothing is written unless a test says so."""


def pipeline_at(root: Path) -> config.Pipeline:
    """A pipeline whose tracking store is a new SQLite file."""
    below = {"etl.sources.raw.path": str(root / "raw.csv"), "storage": {"root": str(root)}}
    return config.Pipeline.model_validate(merged(TOY, below))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> config.Pipeline:
    """One store for these tests, since making its tables takes seconds; each opens a run of its own name."""
    return pipeline_at(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def writer(pipeline) -> Iterator[Recorder]:
    made = Recorder(pipeline, NEVER)
    yield made
    made.stop()


def client(pipeline: config.Pipeline) -> MlflowClient:
    return MlflowClient(tracking.uri(pipeline))


def curve(pipeline: config.Pipeline, run: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of all that the store has, in the order of steps."""
    return sorted((point.step, point.value) for point in client(pipeline).get_metric_history(run, encode(name)))


def points(count: int = 3, key: str = "loss", begin: int = 0) -> list[tuple[str, float, int, int]]:
    return [(key, step / 10, step, 1000 + step) for step in range(begin, begin + count)]


def stored_runs(pipeline: config.Pipeline) -> list[Run]:
    store = client(pipeline)
    return list(store.search_runs([store.get_experiment_by_name(pipeline.name).experiment_id], max_results=1000))


def test_a_trial_has_its_parent_params_curve_tags_and_end(pipeline, writer):
    parent = writer.open("sweep")
    run = writer.open("trial 0", parent, {"train.lr": 0.1}, {"rayloom.state": "running"})
    writer.log(run, points())
    writer.close(run, "FAILED", {"rayloom.state": "failed"}, {"best(loss)": 0.5})
    found = client(pipeline).get_run(run)
    assert (found.info.run_name, found.info.status, found.data.params) == ("trial 0", "FAILED", {"train.lr": "0.1"})
    assert (found.data.tags["mlflow.parentRunId"], found.data.tags["rayloom.state"]) == (parent, "failed")
    assert curve(pipeline, run, "loss") == [(0, 0.0), (1, 0.1), (2, 0.2)] and curve(pipeline, run, "best(loss)") == [(0, 0.5)]


@pytest.mark.parametrize("parent", [None, "another"])
def test_a_run_is_found_again_by_parent_and_name(pipeline, writer, parent):
    below = writer.open(parent) if parent else None
    first = writer.open('it\'s "again"', below)
    assert Recorder(pipeline, NEVER).open('it\'s "again"', below) == writer.open('it\'s "again"', below) == first


def test_runs_of_one_name_below_two_parents_are_two(writer):
    assert len({writer.open("twin", parent) for parent in (None, writer.open("one"), writer.open("two"))}) == 3


def test_params_keep_their_first_value_and_tags_take_the_last(pipeline, writer):
    run = writer.open("changing", params={"a": 1}, tags={"t": "old"})
    writer.open("changing", params={"a": 2, "b@": 3}, tags={"t": "new"})
    found = client(pipeline).get_run(run).data
    assert ({decode(name): value for name, value in found.params.items()}, found.tags["t"]) == ({"a": "1", "b@": "3"}, "new")


def test_points_sent_twice_are_stored_once_and_the_first_value_wins(pipeline, writer):
    run = writer.open("twice")
    assert [writer.log(run, points()), writer.log(run, [("loss", 9.0, 1, 5), *points()])] == [3, 0]
    writer.flush()
    assert curve(pipeline, run, "loss") == [(0, 0.0), (1, 0.1), (2, 0.2)]


@pytest.mark.parametrize("opened", [True, False])
def test_a_new_recorder_asks_the_store_what_is_there(pipeline, writer, opened):
    run = writer.open(f"restart, opened: {opened}")
    writer.log(run, points())
    writer.close(run)
    later = Recorder(pipeline, NEVER)
    if opened:
        later.open(f"restart, opened: {opened}")
    assert later.log(run, [("loss", 9.0, 1, 5), *points(4)]) == 1
    later.stop()
    assert [step for step, _ in curve(pipeline, run, "loss")] == [0, 1, 2, 3]


def test_opening_again_forgets_no_point_that_waits(pipeline, writer):
    run = writer.open("waiting")
    writer.log(run, points())
    writer.open("waiting")
    assert writer.log(run, points()) == 0


def test_more_points_params_and_tags_than_one_request_takes(pipeline, writer):
    many = {f"p{index}": "é" * 6000 for index in range(101)}
    run = writer.open("many", params=many, tags={f"t{index}": "é" * 9000 for index in range(101)})
    writer.log(run, points(1001))
    writer.close(run)
    found = client(pipeline).get_run(run).data
    assert (len(curve(pipeline, run, "loss")), len(found.params)) == (1001, 101)
    assert len([name for name in found.tags if name.startswith("t")]) == 101


def test_values_that_are_not_finite_stand_beside_the_others(pipeline, writer):
    run = writer.open("not finite")
    writer.log(run, [("loss", value, step, 1) for step, value in enumerate([0.5, math.nan, math.inf, -math.inf, 0.25])])
    writer.close(run, metrics={"best": math.nan, "worst": math.inf})
    writer.close(run, metrics={"best": math.nan, "worst": math.inf})
    values = [value for _, value in curve(pipeline, run, "loss")]
    assert values == [0.5, pytest.approx(math.nan, nan_ok=True), sys.float_info.max, -sys.float_info.max, 0.25]
    assert [len(curve(pipeline, run, name)) for name in ("best", "worst")] == [1, 1]


@pytest.mark.parametrize(
    "bad",
    [("loss", None, 7, 1), ("loss", "high", 7, 1), ("loss", 0.5, 1.5, 1), ("loss", 0.5, 7, -1), (7, 0.5, 7, 1), ("loss", 0.5)],
    ids=str,
)
def test_what_is_no_point_is_refused_and_the_others_are_taken(pipeline, writer, bad):
    run = writer.open(f"bad {bad}")
    with pytest.raises(RegistryError, match=r"^1 points are none, such as \("):
        writer.log(run, [points()[0], bad, points()[1]])
    writer.flush()
    assert curve(pipeline, run, "loss") == [(0, 0.0), (1, 0.1)]


@pytest.mark.parametrize("name", ["precision@10", "f1(macro)", "loss,val", "a//b", "x" * 300], ids=lambda name: name[:20])
def test_names_that_mlflow_refuses_come_back(pipeline, writer, name):
    run = writer.open(f"named {name}", params={name: 1}, tags={name: 2})
    writer.log(run, points(1, name))
    writer.close(run)
    found = client(pipeline).get_run(run).data
    assert [decode(key, found.tags) for key in (*found.metrics, *found.params)] == [name, name]
    assert found.tags[encode(name)] == "2"


def test_figures_of_a_run_closed_again_are_doubled_only_where_they_changed(pipeline, writer):
    run = writer.open("closed again")
    for best in (0.5, 0.5, 0.7):
        writer.close(run, metrics={"best": best, "trials": 3})
    assert curve(pipeline, run, "best") == [(0, 0.5), (1, 0.7)] and curve(pipeline, run, "trials") == [(0, 3.0)]


def test_a_close_that_mlflow_refused_is_repeated_without_doubling(pipeline, writer):
    run = writer.open("refused")
    writer.log(run, points())
    client(pipeline).delete_run(run)
    for _ in range(2):
        with pytest.raises(RegistryError, match="must be in the 'active' state"):
            writer.close(run, metrics={"best": 0.5})
    client(pipeline).restore_run(run)
    writer.close(run, metrics={"best": 0.5})
    assert len(curve(pipeline, run, "loss")) == 3 and curve(pipeline, run, "best") == [(0, 0.5)]


def test_a_password_is_left_out(pipeline, writer):
    run = writer.open("secret", params={"storage": "postgresql://me:hidden@host/db"}, tags={"t": "s3://me:hidden@host"})
    found = client(pipeline).get_run(run).data
    assert "hidden" not in f"{found.params} {found.tags}" and found.params["storage"] == "postgresql://…@host/db"


def test_an_unknown_status_is_refused(writer):
    with pytest.raises(RegistryError, match="A run cannot end as 'FINISH'; did you mean 'FINISHED'"):
        writer.close(writer.open("status"), "FINISH")


def test_a_run_that_mlflow_refuses_keeps_no_other_from_being_written(pipeline):
    writer = Recorder(pipeline, NEVER)
    gone, kept = writer.open("gone"), writer.open("kept")
    for run in (gone, kept):
        writer.log(run, points())
    client(pipeline).delete_run(gone)
    with pytest.raises(RegistryError, match="must be in the 'active' state"):
        writer.flush()
    assert len(curve(pipeline, kept, "loss")) == 3
    client(pipeline).restore_run(gone)
    writer.flush()
    assert len(curve(pipeline, gone, "loss")) == 3


def test_what_waits_is_written_by_itself(pipeline):
    writer = Recorder(pipeline, 0.01)
    run = writer.open("by itself")
    writer.log(run, points())
    timer = writer._timer
    timer.join(30)
    assert not timer.is_alive() and len(curve(pipeline, run, "loss")) == 3


def test_a_process_that_ends_in_an_orderly_way_loses_nothing(pipeline, writer):
    run = writer.open("process")
    program = (
        "import sys; from rayloom import config; from rayloom.recorder import Recorder\n"
        "recorder = Recorder(config.Pipeline.model_validate_json(sys.argv[1]), 1e6)\n"
        "recorder.log(sys.argv[2], [('loss', 0.5, 0, 1)])\n"
        "raise SystemExit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program, pipeline.model_dump_json(), run], text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert curve(pipeline, run, "loss") == [(0, 0.5)]


def test_64_writers_on_a_fresh_store_lose_and_double_nothing(joined, tmp_path):
    pipeline = pipeline_at(tmp_path)
    actor = recorder.start(pipeline)
    parent = ray.get(actor.open.remote("sweep"))

    def write(index: int) -> None:
        """A trial that sends everything twice, half of it in another order."""
        for _ in range(2):
            run = ray.get(actor.open.remote(f"trial {index}", parent, {"index": index}))
        sent = [actor.log.remote(run, [point]) for point in points(POINTS)]
        ray.get([*sent, actor.log.remote(run, points(POINTS)[::-1])])
        ray.get([actor.close.remote(run) for _ in range(2)])

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    recorder.stop(actor)
    runs = [run for run in stored_runs(pipeline) if run.data.tags.get("mlflow.parentRunId") == parent]
    assert sorted(int(run.data.params["index"]) for run in runs) == list(range(WRITERS))
    assert {run.info.status for run in runs} == {"FINISHED"}
    expected = [(step, step / 10) for step in range(POINTS)]
    assert Counter(curve(pipeline, run.info.run_id, "loss") == expected for run in runs) == {True: WRITERS}


def test_the_actor_takes_no_cpu_and_leaves_nothing(joined, pipeline):
    from rayloom import cluster

    before = cluster.free_cpus()
    actor = recorder.start(pipeline)
    ray.get(actor.open.remote("actor"))
    assert cluster.free_cpus() == before
    recorder.stop(actor)
    del actor
    wait_for(lambda: not any("Recorder" in left for left in cluster._held_now()))


def test_what_mlflow_refused_is_told_when_the_actor_ends(joined, pipeline):
    actor = recorder.start(pipeline)
    run = ray.get(actor.open.remote("deleted"))
    ray.get(actor.log.remote(run, points()))
    client(pipeline).delete_run(run)
    with pytest.raises(RegistryError, match=r"^MLflow at sqlite:.* must be in the 'active' state") as caught:
        recorder.stop(actor)
    assert "\n" not in str(caught.value)


def test_an_actor_that_dies_is_started_again_and_goes_on(joined, pipeline):
    actor = recorder.start(pipeline)
    run = ray.get(actor.open.remote("restarted actor"))
    ray.get([actor.log.remote(run, points()), actor.flush.remote()])
    ray.kill(actor, no_restart=False)
    for _ in range(2):  # the first may still reach the process that dies, and end with it
        ray.get([actor.log.remote(run, points(4)), actor.flush.remote()])
    recorder.stop(actor)
    assert len(curve(pipeline, run, "loss")) == 4
