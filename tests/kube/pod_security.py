"""The Pod Security Standard "restricted" as Kubernetes publishes it, with "baseline" in it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/ (v1.34): what an API server
refuses in a namespace with `pod-security.kubernetes.io/enforce: restricted`.
"""

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
VOLUMES |= {"persistentVolumeClaim"}
IP_SYSCTLS = """
    ip_local_port_range ip_local_reserved_ports ip_unprivileged_port_start ping_group_range
    tcp_fin_timeout tcp_keepalive_intvl tcp_keepalive_probes tcp_keepalive_time tcp_rmem
    tcp_syncookies tcp_wmem
"""
SYSCTLS = {"kernel.shm_rmid_forced", *(f"net.ipv4.{name}" for name in IP_SYSCTLS.split())}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROFILES = {"RuntimeDefault", "Localhost"}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(template: Manifest) -> list[str]:
    """What a pod must not be, each with the place in its manifest."""
    spec = template["spec"]
    return [
        *_of_pod(template.get("metadata", {}), spec),
        *(f"volumes.{volume['name']}" for volume in spec.get("volumes", []) if _is_other(volume)),
        *(problem for part in _containers(spec) for problem in _of_container(part, spec)),
    ]


def templates(manifest: Manifest) -> Iterator[Manifest]:
    """The pods that an object asks for."""
    if manifest["kind"] == "MPIJob":
        for replica in manifest["spec"]["mpiReplicaSpecs"].values():
            yield replica["template"]
    elif manifest["kind"] == "Pod":
        yield manifest
    elif "template" in manifest.get("spec", {}):
        yield manifest["spec"]["template"]


def _containers(spec: Manifest) -> Iterator[Manifest]:
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        yield from spec.get(kind, [])


def _is_other(volume: Manifest) -> bool:
    return not set(volume) - {"name"} <= VOLUMES


def _of_pod(metadata: Manifest, spec: Manifest) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for key, profile in metadata.get("annotations", {}).items():
        if key.startswith(APPARMOR) and not _is_default_apparmor(profile):
            yield key
    context = spec.get("securityContext", {})
    for sysctl in context.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctls.{sysctl['name']}"
    yield from _of_any(context, "securityContext")


def _is_default_apparmor(profile: str) -> bool:
    return profile in ("", "runtime/default") or profile.startswith("localhost/")


def _of_any(context: Manifest, place: str) -> Iterator[str]:
    """What a security context must not say, be it a pod's or a container's."""
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{place}.windowsOptions.hostProcess"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{place}.seLinuxOptions"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"{place}.appArmorProfile"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"{place}.seccompProfile"
    if context.get("runAsUser") == 0:
        yield f"{place}.runAsUser"
    if context.get("runAsNonRoot") is False:
        yield f"{place}.runAsNonRoot"


def _of_container(container: Manifest, spec: Manifest) -> Iterator[str]:
    context, of_pod = container.get("securityContext", {}), spec.get("securityContext", {})
    place = container["name"]
    yield from _of_any(context, place)
    if context.get("privileged"):
        yield f"{place}.privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{place}.allowPrivilegeEscalation"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{place}.capabilities.drop"
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield f"{place}.capabilities.add"
    for name in ("runAsNonRoot", "seccompProfile"):
        if name not in context and name not in of_pod:
            yield f"{place}.{name}"
    if context.get("procMount", "Default") != "Default":
        yield f"{place}.procMount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{place}.hostPort"
    handlers = [container.get(name, {}) for name in PROBES]
    handlers += container.get("lifecycle", {}).values()
    asked = [handler.get(kind, {}) for handler in handlers for kind in ("httpGet", "tcpSocket")]
    if any(action.get("host") for action in asked):
        yield f"{place}.host"
