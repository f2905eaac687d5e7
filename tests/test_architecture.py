"""The house: imports run one way, jobs stay thin, nothing hides the standard library, and the README's tree is the disk's."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JOBS = sorted((ROOT / "jobs").glob("[a-z]*.py"))
LONGEST_JOB = 45
LONGEST_FUNCTION = 40


def test_imports_run_one_way():
    """The layers and the ban on Ray, Spark and MLflow stand in pyproject.toml."""
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_import_linter_notices_a_breach(tmp_path):
    """A contract that holds whatever the code does would prove nothing: `errors` may not import `stages`."""
    source = ROOT / "pyproject.toml"
    package = tmp_path / "rayloom"
    for file in (ROOT / "platform" / "rayloom").rglob("*.py"):
        copy = package / file.relative_to(ROOT / "platform" / "rayloom")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text() + ("\nimport rayloom.stages\n" if file.name == "errors.py" else ""))
    for folder in ("jobs", "serve_apps"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(source.read_text())
    tool = Path(sys.executable).with_name("lint-imports")
    env = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    done = subprocess.run([tool, "--no-cache"], cwd=tmp_path, env=env, text=True, capture_output=True)
    assert done.returncode == 1 and "rayloom.errors -> rayloom.stages" in done.stdout, done.stdout + done.stderr


def test_platform_is_no_package():
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("module", ["rayloom.training", "rayloom.serving.predictor", "rayloom.cli", "rayloom.commands"])
def test_loop_predictor_and_command_line_start_without_ray_spark_and_mlflow(module):
    program = f"import sys, {module}; print([name for name in ('ray', 'raydp', 'pyspark', 'mlflow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_job_is_thin(job):
    """A job reads arguments, calls stages in order and ends: no class, no loop, one function, a docstring with examples."""
    text = job.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= LONGEST_JOB
    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] == ["main"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.For | ast.While | ast.Try)]
    assert f"python -m jobs.{job.stem}" in (ast.get_docstring(tree) or "")


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_help_has_examples_and_needs_no_cluster(job):
    done = subprocess.run(
        [sys.executable, "-m", f"jobs.{job.stem}", "--help"], cwd=ROOT, text=True, capture_output=True, timeout=20
    )
    assert done.returncode == 0
    assert "--set train." in done.stdout or "--config configs/" in done.stdout


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_functions_are_short():
    """Lines of code, docstring not counted: a long function is two ideas under one name."""
    long = {}
    for path in (ROOT / "platform").rglob("*.py"):
        for function in functions(path):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if lines > LONGEST_FUNCTION:
                long[f"{path.name}:{function.name}"] = lines
    assert long == {}


def test_no_pickle_and_no_unsafe_load():
    texts = {path: path.read_text() for path in (ROOT / "platform").rglob("*.py")}
    assert [path for path, text in texts.items() if re.search(r"\bimport pickle|pickle\.load", text)] == []
    loads = [line for text in texts.values() for line in text.splitlines() if "torch.load(" in line]
    assert loads and all("weights_only=True" in line for line in loads)


def tree_in_readme() -> set[str]:
    """Paths that README.md draws between its ```tree fences: indentation nests, ' # ' or two spaces begin the remark."""
    block = re.search(r"```tree\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "README.md has no ```tree block"
    paths, parents = set(), []
    for line in block.group(1).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        parents[depth:] = [name.rstrip("/")]
        paths.add("/".join(parents))
    return paths


def test_readme_tree_is_the_disk():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    files = {file for file in tracked if not file.endswith("__init__.py")} | {"platform/rayloom/models/__init__.py"}
    files |= {f"platform/rayloom/{place}/__init__.py" for place in ("launchers", "etl/sources", "features", "stages")}
    folders = {str(parent) for file in files for parent in Path(file).parents if str(parent) != "."}
    assert tree_in_readme() == files | folders


def test_the_record_in_the_readme_is_one_that_the_model_takes():
    import json

    from rayloom import config

    text = (ROOT / "README.md").read_text()
    record = json.loads(re.search(r"/predict -d '(\[\{\"date\".*?\}\])'", text, re.DOTALL).group(1))[0]
    assert list(record) == list(config.load([ROOT / "configs" / "flights.yaml"]).features.columns)


def test_every_test_that_the_readme_names_exists():
    text = (ROOT / "README.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"::(test_\w+)", text))
    assert named and all(f"def {name}(" in tests for name in named)
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/]+\.py)", text))
