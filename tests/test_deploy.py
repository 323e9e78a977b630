"""What deploy/ has for clusters: manifests that a restricted namespace lets in, and that fit the images
and the commands."""

import re
from pathlib import Path

import pytest
import yaml

from vitkit.apps.serve import serve
from vitkit.system.functions.parameters import options, parameters

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
IMAGES = {"vitkit-serve": ROOT / "Dockerfile", "vitkit-train": DEPLOY / "Dockerfile.train"}
MANIFESTS = {
    path.name: list(yaml.safe_load_all(path.read_text())) for path in DEPLOY.glob("*.yaml")
}
PODS = {
    name: document["spec"]["template"]
    for name, documents in MANIFESTS.items()
    for document in documents
    if "template" in document["spec"]
}


def of_kind(name: str, kind: str) -> dict:
    """The one object of a kind in a manifest."""
    (found,) = [document for document in MANIFESTS[name] if document["kind"] == kind]
    return found


@pytest.mark.parametrize("name", PODS)
def test_a_restricted_namespace_lets_the_pods_in(name):
    """Kubernetes' Pod Security Standards, the level `restricted`; and the image is not written to."""
    pod = PODS[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert type(pod["securityContext"]["runAsUser"]) is int and pod["securityContext"]["runAsUser"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    for volume in pod["volumes"]:
        assert volume.keys() - {"name"} <= {"emptyDir", "persistentVolumeClaim", "secret"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts.keys() >= {"/tmp"} and set(mounts.values()) == {
            volume["name"] for volume in pod["volumes"]
        }
        assert {"name": "HOME", "value": "/tmp"} in container["env"]


@pytest.mark.parametrize("name", PODS)
def test_the_user_is_the_images_and_a_number(name):
    (container,) = PODS[name]["spec"]["containers"]
    image, _, tag = container["image"].rpartition("/")[2].partition(":")
    assert tag and tag != "latest"
    lines = IMAGES[image].read_text().splitlines()
    user = PODS[name]["spec"]["securityContext"]
    users = [line for line in lines if line.startswith("USER ")]
    assert users == [f"USER {user['runAsUser']}:{user['runAsGroup']}"]
    assert f"--uid {user['runAsUser']} --gid {user['runAsGroup']}" in "".join(lines)


@pytest.mark.parametrize("name", PODS)
def test_a_scheduler_knows_what_the_pods_take(name):
    (container,) = PODS[name]["spec"]["containers"]
    resources = container["resources"]
    assert resources["requests"].keys() >= {"cpu", "memory"} and "memory" in resources["limits"]
    for volume in PODS[name]["spec"]["volumes"]:
        assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""})


def test_a_server_is_asked_and_ends_as_it_should():
    pod = PODS["serve.yaml"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    defaults = {each.name: each.default for each in parameters(serve)}
    assert ports["http"] == defaults["port"]
    asked = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert asked == {
        "startupProbe": {"path": "/ready", "port": "http"},
        "readinessProbe": {"path": "/ready", "port": "http"},
        "livenessProbe": {"path": "/health", "port": "http"},
    }
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep + defaults["grace"] < pod["terminationGracePeriodSeconds"]
    known = {f"--{option.name}" for option in options(serve)}
    assert {word for word in container["args"] if word.startswith("--")} <= known
    assert "1.30" in (DEPLOY / "serve.yaml").read_text().splitlines()[0]  # which sleep needs


def test_a_server_is_scaled_and_drained_one_by_one():
    deployment = of_kind("serve.yaml", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert "replicas" not in deployment["spec"]  # else each `kubectl apply` undoes the autoscaler
    budget = of_kind("serve.yaml", "PodDisruptionBudget")["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    scaler = of_kind("serve.yaml", "HorizontalPodAutoscaler")["spec"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vitkit"}
    assert scaler["scaleTargetRef"] == target
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    service = of_kind("serve.yaml", "Service")["spec"]
    assert service["selector"] == labels and service["ports"][0]["targetPort"] == "http"


def test_the_pods_of_a_training_find_each_other_and_have_time_to_save():
    job = of_kind("train.yaml", "Job")
    service = of_kind("train.yaml", "Service")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (command,) = container["args"]
    name = job["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    (port,) = service["spec"]["ports"]
    assert f"--rdzv-endpoint {name}-0.{pod['subdomain']}:{port['port']} " in command
    assert f"--nnodes {job['spec']['completions']} " in command
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node {gpus} " in command
    save = int(re.search(r"--shutdown-timeout (\d+)", command)[1])
    assert save < pod["terminationGracePeriodSeconds"]
    (shared_memory,) = [volume for volume in pod["volumes"] if volume["name"] == "memory"]
    assert shared_memory["emptyDir"]["medium"] == "Memory"
    assert {"name": "memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
