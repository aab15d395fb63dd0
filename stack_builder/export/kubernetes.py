"""Kubernetes objects: a Deployment for one node, a LeaderWorkerSet (``leaderworkerset.x-k8s.io/v1``) for several."""

from __future__ import annotations

from stack_builder.export.service import (
    CACHE,
    HEALTH,
    HEALTH_TIMEOUT,
    KEY_VARIABLE,
    POLICY_FILE,
    Service,
    dump,
    with_key,
)

RENDEZVOUS_PORT = 20000
_PERIOD = 10  # seconds between two probes of a start
_PULL = 1800  # seconds for the image to arrive, which is before the start
_RANK = "STACKB_NODE_RANK"
_GROUP = "leaderworkerset.sigs.k8s.io"


def render(service: Service) -> str:
    """Write the objects. The API key is referred to as a Secret, which is not among them."""
    comment = [f"{service.stack} on {service.nodes} node(s) of {service.gpus} GPUs. Made by stackb export kubernetes."]
    if service.keyed:
        comment += [
            "The API key comes from a Secret that is not in this file. Create it first:",
            f"  kubectl create secret generic {_secret(service)} --from-file=api-key=FILE",
            "FILE holds the key alone: a line feed at its end would be part of it.",
        ]
    if service.nodes > 1:
        comment.append("Needs the LeaderWorkerSet controller in the cluster.")
    return dump(objects(service), comment)


def objects(service: Service) -> list[dict[str, object]]:
    """The objects, in the order in which they are to be made."""
    made: list[dict[str, object]] = []
    if service.policy is not None:
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": _metadata(service, f"{service.name}-policy"),
                "data": {"policy.json": service.policy},
            }
        )
    made.append(_deployment(service) if service.nodes == 1 else _group(service))
    made.append(_service(service))
    return made


def _deployment(service: Service) -> dict[str, object]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(service),
        "spec": {
            "replicas": 1,
            "progressDeadlineSeconds": service.start_minutes * 60 + _PULL,  # else 600: called failed while it loads
            "strategy": {"type": "Recreate"},  # a second pod would wait for the GPUs of the first
            "selector": {"matchLabels": _selector(service)},
            "template": _pod(service),
        },
    }


def _group(service: Service) -> dict[str, object]:
    """One server over several pods: they start together, and if one is lost, all start anew."""
    return {
        "apiVersion": f"{_GROUP.replace('sigs.k8s.io', 'x-k8s.io')}/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(service),
        "spec": {
            "replicas": 1,
            # The leader is not ready before all ranks have met: waiting for it would be waiting for ever.
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": service.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(service),
                "workerTemplate": _pod(service),
            },
        },
    }


def _service(service: Service) -> dict[str, object]:
    selector = _selector(service)
    if service.nodes > 1:
        selector[f"{_GROUP}/worker-index"] = "0"  # only the leader answers clients
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service),
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _pod(service: Service) -> dict[str, object]:
    volumes: list[dict[str, object]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{service.shm_gib}Gi"}},
        {"name": "cache", "emptyDir": {}},
    ]
    volumes += [
        {"name": f"model-{number}", "hostPath": {"path": folder, "type": "Directory"}}
        for number, folder in enumerate(service.folders)
    ]
    if service.policy is not None:
        volumes.append({"name": "policy", "configMap": {"name": f"{service.name}-policy"}})
    return {
        "metadata": {"labels": _labels(service)},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 120,
            "containers": [_container(service)],
            "volumes": volumes,
        },
    }


def _container(service: Service) -> dict[str, object]:
    probe = {"httpGet": {"path": HEALTH, "port": "http"}, "timeoutSeconds": HEALTH_TIMEOUT}
    return {
        "name": "server",
        "image": service.image,
        "command": _command(service),
        "env": _environment(service),
        "ports": [{"name": "http", "containerPort": service.port, "protocol": "TCP"}],
        "resources": {"limits": {"nvidia.com/gpu": service.gpus}},
        "securityContext": {"allowPrivilegeEscalation": False},
        # Until it succeeds the other two wait: loading weights and capturing graphs takes minutes.
        "startupProbe": {
            **probe,
            "periodSeconds": _PERIOD,
            "failureThreshold": service.start_minutes * 60 // _PERIOD,
        },
        "readinessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 2},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 4},
        "volumeMounts": _mounts(service),
    }


def _command(service: Service) -> list[str]:
    words = [_literal(word) for word in service.argv]
    if service.nodes > 1:
        words += ["--nnodes", str(service.nodes), "--node-rank", f"$({_RANK})"]
        words += ["--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{RENDEZVOUS_PORT}"]  # the controller sets it
    return with_key(words, f"$({KEY_VARIABLE})") if service.keyed else words


def _environment(service: Service) -> list[dict[str, object]]:
    env: list[dict[str, object]] = [
        {"name": name, "value": _literal(value)} for name, value in service.environment.items()
    ]
    if service.nodes > 1:
        field = f"metadata.labels['{_GROUP}/worker-index']"
        env.append({"name": _RANK, "valueFrom": {"fieldRef": {"fieldPath": field}}})
    if service.keyed:
        key = {"secretKeyRef": {"name": _secret(service), "key": "api-key"}}
        env.append({"name": KEY_VARIABLE, "valueFrom": key})
    return env


def _mounts(service: Service) -> list[dict[str, object]]:
    mounts: list[dict[str, object]] = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the name is the kernel's
        {"name": "cache", "mountPath": CACHE},
    ]
    mounts += [
        {"name": f"model-{number}", "mountPath": folder, "readOnly": True}
        for number, folder in enumerate(service.folders)
    ]
    if service.policy is not None:
        mounts.append({"name": "policy", "mountPath": POLICY_FILE.rpartition("/")[0], "readOnly": True})
    return mounts


def _metadata(service: Service, name: str | None = None) -> dict[str, object]:
    return {"name": name or service.name, "labels": _labels(service)}


def _labels(service: Service) -> dict[str, str]:
    return {**_selector(service), "app.kubernetes.io/managed-by": "stackb", "stackb/stack": service.stack[:63]}


def _selector(service: Service) -> dict[str, str]:
    return {"app.kubernetes.io/name": "sglang", "app.kubernetes.io/instance": service.name}


def _secret(service: Service) -> str:
    return f"{service.name}-api-key"


def _literal(text: str) -> str:
    """Keep Kubernetes from reading ``$(NAME)`` as a variable."""
    return text.replace("$(", "$$(")
