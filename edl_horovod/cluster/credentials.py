"""Finds the configured cluster and its credentials: a kubeconfig, or those of this pod."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edl_horovod.errors import NoCluster, did_you_mean

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder with the token of a pod's service account, which the kubelet renews."""
DEFAULT_KUBECONFIG = "~/.kube/config"
DEFAULT_NAMESPACE = "default"
_UNREADABLE = (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError)
"""Errors of a kubeconfig that is not there, is no YAML, or has another form."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster, a namespace of it, and where the credentials are."""

    namespace: str
    kubeconfig: str = ""
    """Paths, separated as in KUBECONFIG; empty for the service account of this pod."""
    context: str = ""
    """A context of the kubeconfig; empty for its current one."""
    service_account: Path = SERVICE_ACCOUNT

    def __str__(self) -> str:
        if self.kubeconfig:
            return f"context={self.context} of {self.kubeconfig}"
        return f"the service account in {self.service_account}"


def find_cluster(
    *, context: str = "", namespace: str = "", service_account: Path = SERVICE_ACCOUNT
) -> Place:
    """Find the cluster as kubectl does: by the kubeconfig, else by the pod's service account.

    Args:
        context: A context of the kubeconfig; empty for its current one.
        namespace: Empty for the namespace of the context or the pod, or `default`.
        service_account: The folder in which a pod has its service account.

    Raises:
        NoCluster: There is neither, or the kubeconfig has no such context.
    """
    if present := kubeconfigs():
        kubeconfig = os.pathsep.join(present)
        name, settings = _context(kubeconfig, context)
        chosen = str(namespace or settings.get("namespace") or DEFAULT_NAMESPACE)
        return Place(namespace=chosen, kubeconfig=kubeconfig, context=name)
    is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and service_account.is_dir()
    if context or os.environ.get("KUBECONFIG") or not is_pod:
        paths = os.environ.get("KUBECONFIG")
        named = f"KUBECONFIG={paths}" if paths else DEFAULT_KUBECONFIG
        raise NoCluster(
            "There is no kubeconfig.",
            received=f"{named}{f', context={context}' if context else ''}",
            hint="Set KUBECONFIG to the file that your cluster gave you.",
        )
    if not namespace:
        try:
            namespace = (service_account / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            namespace = DEFAULT_NAMESPACE
    return Place(namespace=namespace, service_account=service_account)


def kubeconfigs() -> list[str]:
    """The paths of the kubeconfigs that are there."""
    return [path for path in _paths() if os.path.isfile(path)]


def names_of_kubeconfigs() -> set[str]:
    """The paths of the kubeconfigs, and the names in them as far as they can be read."""
    names = set(_paths())
    for path in kubeconfigs():
        with suppress(*_UNREADABLE):
            content = _content(path)
            names.add(str(content.get("current-context") or ""))
            for part in ("contexts", "clusters", "users"):
                for entry in content.get(part) or []:
                    names.add(str(entry["name"]))
                    settings = entry.get("context") or {}
                    names |= {
                        str(settings.get(key) or "") for key in ("cluster", "user", "namespace")
                    }
    return names


def _paths() -> list[str]:
    """Where the kubeconfigs are looked for."""
    paths = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    return [path for path in map(os.path.expanduser, paths.split(os.pathsep)) if path]


def _content(path: str) -> dict[str, Any]:
    return yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}


def _context(kubeconfig: str, wanted: str) -> tuple[str, dict[str, Any]]:
    """Find a context by name, or the current one; the first file that has it counts."""
    # As in kubectl; in the library's KubeConfigMerger the current context of the last file counts.
    contexts: dict[str, dict[str, Any]] = {}
    current = ""
    for path in kubeconfig.split(os.pathsep):
        try:
            content = _content(path)
            current = current or str(content.get("current-context") or "")
            for entry in content.get("contexts") or []:
                contexts.setdefault(str(entry["name"]), entry.get("context") or {})
        except _UNREADABLE as error:
            raise NoCluster(
                "The kubeconfig cannot be read.", received=f"{path}, {_what_is_wrong(error)}"
            ) from error
    name = wanted or current
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise NoCluster(
            f"The kubeconfig has no such context.{did_you_mean(name, contexts)}",
            received=f"context={name!r}, file={kubeconfig}",
            hint=f"Contexts: {known}.",
        )
    return name, contexts[name]


def _what_is_wrong(error: Exception) -> str:
    """Why a kubeconfig cannot be read, without its text, which may hold a token or a password."""
    name = type(error).__name__
    if isinstance(error, OSError):
        return f"{name}: {error.strerror}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{name} in line {error.problem_mark.line + 1}"
    return name
