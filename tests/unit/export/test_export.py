"""Compose files and Kubernetes objects, judged by the published schemas, and what must be in them, by hand."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from compose_spec import PyCompose

from stack_builder.cli.app import run

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kubernetes_validate

IMAGE = "registry.example:5000/team/stack@sha256:" + "a" * 64
_LWS = json.loads((Path(__file__).parent / "leaderworkerset-v1.json").read_text())

Call = Callable[..., str]


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(kind: str, *words: str) -> str:
        before, after = (words, ()) if "--" not in words else (words[: words.index("--")], words[words.index("--") :])
        if "--model" not in words:
            before = (*before, "--model", "org/model")
        assert run(["export", kind, "--image", IMAGE, *before, *after]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text('{"candidate_steps": [1, 3], "note": "${HOME} $(HOME)"}')
    return path


def _objects(text: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def _assert_valid(each: dict[str, Any]) -> None:
    if each["kind"] != "LeaderWorkerSet":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of jsonschema, in kubernetes-validate
            kubernetes_validate.validate(each, "1.37", strict=True)
        return
    jsonschema.validate(each, _LWS)
    for which in ("leaderTemplate", "workerTemplate"):
        template = each["spec"]["leaderWorkerTemplate"][which]
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        _assert_valid(pod)


def _container(workload: dict[str, Any], which: str = "leaderTemplate") -> dict[str, Any]:
    spec = workload["spec"]
    template = spec["template"] if workload["kind"] == "Deployment" else spec["leaderWorkerTemplate"][which]
    (container,) = template["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _names(text: str) -> list[str]:
    """Names of the services, by a reader that knows the Compose Specification."""
    names: list[str] = PyCompose.from_yaml(text).service_names()
    return names


def _after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_kubernetes_objects_satisfy_the_published_schemas(export: Call, policy: Path, nodes: str) -> None:
    text = export(
        "kubernetes", "--nodes", nodes, "--model", "/models/m", "--draft", "/models/d", "--policy", str(policy)
    )
    objects = _objects(text)
    workload = "Deployment" if nodes == "1" else "LeaderWorkerSet"
    assert list(objects) == ["ConfigMap", workload, "Service"]
    for each in objects.values():
        _assert_valid(each)


def test_the_schemas_find_a_field_that_is_misspelt(export: Call) -> None:
    deployment = _objects(export("kubernetes"))["Deployment"]
    _container(deployment)["startupprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        _assert_valid(deployment)
    group = _objects(export("kubernetes", "--nodes", "2"))["LeaderWorkerSet"]
    group["spec"]["leaderWorkerTemplate"]["workers"] = 2
    with pytest.raises(jsonschema.ValidationError):
        _assert_valid(group)


def test_several_nodes_meet_at_the_leader(export: Call) -> None:
    objects = _objects(export("kubernetes", "--nodes", "4", "--gpus-per-node", "8"))
    group = objects["LeaderWorkerSet"]
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 4
    assert group["spec"]["startupPolicy"] == "LeaderCreated"
    for which in ("leaderTemplate", "workerTemplate"):
        container = _container(group, which)
        words = container["command"]
        assert _after(words, "--nnodes") == "4"
        assert _after(words, "--tp-size") == "32"
        assert _after(words, "--dist-init-addr") == "$(LWS_LEADER_ADDRESS):20000"
        rank = _after(words, "--node-rank").strip("$()")
        source = next(each for each in container["env"] if each["name"] == rank)["valueFrom"]["fieldRef"]["fieldPath"]
        assert source == "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
    assert objects["Service"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_one_node_needs_no_rendezvous(export: Call) -> None:
    words = _container(_objects(export("kubernetes"))["Deployment"])["command"]
    assert not {"--nnodes", "--node-rank", "--dist-init-addr"} & set(words)
    assert _after(words, "--tp-size") == "8"


def test_gpus_shared_memory_and_image_by_digest(export: Call) -> None:
    deployment = _objects(export("kubernetes", "--gpus-per-node", "4"))["Deployment"]
    container = _container(deployment)
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    shm = next(each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm")
    assert volumes[shm]["emptyDir"]["medium"] == "Memory"


def test_probes_wait_for_a_long_start_and_outlast_a_slow_health_check(export: Call) -> None:
    container = _container(_objects(export("kubernetes", "--start-minutes", "45"))["Deployment"])
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 45 * 60
    # a Deployment that has made no progress for ten minutes, by default, is reported as failed
    assert (
        _objects(export("kubernetes", "--start-minutes", "45"))["Deployment"]["spec"]["progressDeadlineSeconds"]
        > 45 * 60
    )
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
        assert container[probe]["timeoutSeconds"] > 20  # SGLANG_HEALTH_CHECK_TIMEOUT


def test_models_are_mounted_where_the_arguments_look_for_them(export: Call) -> None:
    text = export("kubernetes", "--model", "/models/m", "--draft", "org/draft")
    deployment = _objects(text)["Deployment"]
    container = _container(deployment)
    assert _after(container["command"], "--model-path") == "/models/m"
    assert _after(container["command"], "--speculative-draft-model-path") == "org/draft"
    mount = next(each for each in container["volumeMounts"] if each["mountPath"] == "/models/m")
    assert mount["readOnly"] is True
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mount["name"]]["hostPath"]["path"] == "/models/m"


def test_the_policy_arrives_as_the_file_that_the_arguments_name(export: Call, policy: Path) -> None:
    objects = _objects(export("kubernetes", "--draft", "org/draft", "--policy", str(policy)))
    assert json.loads(objects["ConfigMap"]["data"]["policy.json"]) == json.loads(policy.read_text())
    container = _container(objects["Deployment"])
    path = _after(container["command"], "--speculative-adaptive-config")
    mount = next(each for each in container["volumeMounts"] if path == f"{each['mountPath']}/policy.json")
    volumes = objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
    volume = next(each for each in volumes if each["name"] == mount["name"])
    assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_no_secret_and_nothing_of_this_machine(
    export: Call, kind: str, monkeypatch: pytest.MonkeyPatch, private_cache: Path, policy: Path
) -> None:
    plain = export(kind)
    for name in ("STACKB_API_KEY", "HF_TOKEN", "USER", "HOSTNAME"):
        monkeypatch.setenv(name, "planted-secret")
    text = export(kind, "--draft", "org/draft", "--policy", str(policy))
    assert "planted" not in text
    assert str(private_cache) not in text
    assert str(policy.parent) not in text
    assert export(kind) == plain


def test_the_key_is_a_reference_to_a_secret(export: Call) -> None:
    container = _container(_objects(export("kubernetes"))["Deployment"])
    variable = _after(container["command"], "--api-key").strip("$()")
    entry = next(each for each in container["env"] if each["name"] == variable)
    assert set(entry) == {"name", "valueFrom"}
    assert entry["valueFrom"]["secretKeyRef"]["key"] == "api-key"
    assert "--api-key" not in export("kubernetes", "--insecure")


def test_dollar_signs_of_arguments_reach_the_server(export: Call) -> None:
    words = _container(_objects(export("kubernetes", "--", "--served-model-name", "a$(HOME)"))["Deployment"])["command"]
    assert _after(words, "--served-model-name") == "a$$(HOME)"
    body = yaml.safe_load(export("compose", "--", "--served-model-name", "a${HOME}"))
    assert _after(body["services"]["server"]["command"], "--served-model-name") == "a$${HOME}"


def test_the_compose_file_satisfies_the_specification(export: Call, policy: Path) -> None:
    text = export("compose", "--gpus", "2", "--model", "/models/m", "--draft", "org/d", "--policy", str(policy))
    assert _names(text) == ["server"]
    server = yaml.safe_load(text)["services"]["server"]
    assert server["image"] == IMAGE
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert (device["count"], device["capabilities"]) == (2, ["gpu"])
    assert server["ports"] == ["127.0.0.1:30000:30000"]
    assert _after(server["command"], "--speculative-adaptive-config") == server["configs"][0]["target"]
    assert json.loads(yaml.safe_load(text)["configs"]["policy"]["content"].replace("$$", "$")) == json.loads(
        policy.read_text()
    )


def test_the_reader_of_compose_files_finds_a_field_of_another_type(export: Call) -> None:
    body = yaml.safe_load(export("compose"))
    body["services"]["server"]["healthcheck"]["retries"] = "often"
    with pytest.raises(ValueError):
        _names(yaml.safe_dump(body))


def test_own_parallelism_is_left_alone(export: Call) -> None:
    words = _container(_objects(export("kubernetes", "--", "--tp-size", "2", "--dp-size", "4"))["Deployment"])[
        "command"
    ]
    assert words.count("--tp-size") == 1
    assert _after(words, "--tp-size") == "2"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--image", "team/stack:latest"], "not an image by digest"),
        (["--name", "Upper.Case"], "no DNS label"),
        (["--name", "a" * 60], "no DNS label"),
        (["--model", "../m"], "not an absolute path"),
        (["--model", "/models/../etc"], "not an absolute path"),
        (["--policy", "POLICY"], "needs a draft"),
        (["--draft", "d", "--policy", "LIST"], "no JSON object"),
        (["--draft", "d", "--policy", "DEEP"], "not JSON"),
        (["--", "--api-key", "s3cret"], "would write a secret"),
        (["--", "--port", "1"], "set by stackb itself"),
    ],
)
def test_what_is_refused(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {"POLICY": "{}", "LIST": "[]", "DEEP": "[" * 100_000}.items():
        (tmp_path / name).write_text(text)
        words = [str(tmp_path / name) if word == name else word for word in words]
    given = ["export", "kubernetes"]
    given += [] if "--image" in words else ["--image", IMAGE]
    given += [] if "--model" in words else ["--model", "org/m"]
    assert run([*given, *words]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert "s3cret" not in said.err
