"""A compose file (Compose Specification; inline ``configs`` need Docker Compose 2.23.1 or later)."""

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


def render(service: Service) -> str:
    """Write the file. The port is published on the loopback interface only; the key comes from the environment."""
    comment = [f"{service.stack}, served by one machine. Made by stackb export compose."]
    if service.keyed:
        comment.append(f"The API key is read from the environment: {KEY_VARIABLE}=… docker compose up")
    return dump([_file(service)], comment)


def _file(service: Service) -> dict[str, object]:
    body: dict[str, object] = {
        "name": service.name,
        "services": {"server": _server(service)},
        "volumes": {"cache": {}},
    }
    if service.policy is not None:
        body["configs"] = {"policy": {"content": _literal(service.policy)}}
    return body


def _server(service: Service) -> dict[str, object]:
    argv = [_literal(word) for word in service.argv]
    if service.keyed:
        argv = with_key(argv, f"${{{KEY_VARIABLE}:?set {KEY_VARIABLE}}}")
    server: dict[str, object] = {
        "image": service.image,
        "command": argv,
        "environment": {name: _literal(value) for name, value in service.environment.items()},
        "ports": [f"127.0.0.1:{service.port}:{service.port}"],
        "shm_size": f"{service.shm_gib}gb",
        "ulimits": {"memlock": -1},
        "volumes": [
            {"type": "volume", "source": "cache", "target": CACHE},
            *(
                {"type": "bind", "source": _literal(folder), "target": _literal(folder), "read_only": True}
                for folder in service.folders
            ),
        ],
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": service.gpus, "capabilities": ["gpu"]}]}
            }
        },
        "healthcheck": _healthcheck(service),
        "security_opt": ["no-new-privileges:true"],
        "restart": "unless-stopped",
        "stop_grace_period": "2m",
    }
    if service.policy is not None:
        server["configs"] = [{"source": "policy", "target": POLICY_FILE}]
    return server


def _healthcheck(service: Service) -> dict[str, object]:
    """By the image's own Python: it has no curl."""
    url = f"http://127.0.0.1:{service.port}{HEALTH}"
    program = f"import urllib.request; urllib.request.urlopen('{url}', timeout={HEALTH_TIMEOUT})"
    return {
        "test": ["CMD", service.argv[0], "-c", program],
        "interval": "30s",
        "timeout": f"{HEALTH_TIMEOUT + 5}s",
        "retries": 4,
        "start_period": f"{service.start_minutes}m",
    }


def _literal(text: str) -> str:
    """Keep compose from reading ``$`` as a variable."""
    return text.replace("$", "$$")
