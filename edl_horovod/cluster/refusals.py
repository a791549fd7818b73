"""Converts refusals of the API server to errors: a class and a message for each reason."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edl_horovod import errors
from edl_horovod.cluster.objects import Kind, path_of
from edl_horovod.errors import ClusterError

MAX_SAID = 1000
"""Most characters of the server's own text in a message; a proxy may send a long page."""


class Expired(ClusterError):
    """The requested resource version or page does not exist any more (410): list again."""


@dataclass(frozen=True)
class Attempt:
    """A request, as messages describe it."""

    verb: str
    """The verb in RBAC: get, list, watch, create, patch, delete."""
    kind: Kind
    namespace: str | None
    """The namespace; None for all, or for a kind that belongs to none."""
    server: str
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """The resource in RBAC, for instance `pods/log`."""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.kind.resource}{part}"

    @property
    def path(self) -> str:
        """Path of the request: that of the collection for a new object, else that of the object."""
        name = "" if self.verb == "create" else self.name
        return path_of(self.kind, self.namespace, name, self.subresource)

    def __str__(self) -> str:
        if not self.kind.api_version:
            return f"{self.verb} {self.path}"
        about = f"{self.verb} {' '.join(filter(None, (self.resource, self.name)))}"
        if not self.kind.is_namespaced:
            return about
        scope = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{about} in {scope}"


def refusal(attempt: Attempt, code: int, body: bytes) -> ClusterError:
    """The error for an HTTP error, whose body is a `Status`, or any text from a proxy."""
    status = None
    with suppress(ValueError):
        status = json.loads(body)
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": " ".join(body.decode("utf-8", "replace").split())[:MAX_SAID]}
    return refusal_of_status(attempt, {**status, "code": code})


def refusal_of_status(attempt: Attempt, status: dict[str, Any]) -> ClusterError:
    """The error for a `Status` object, which a watch may also contain.

    It has `code`, and `reason`, `message` and `details` if the API server made it.
    """
    code, said = int(status.get("code") or 0), str(status.get("message") or "no reason given")
    received = f"{attempt}, HTTP {code}: {said}"
    if code == 404:
        return _not_found(attempt, status, received)
    kind, summary = _BY_CODE.get(code, (ClusterError, "The API server refused."))
    hint = ""
    if code == 400 and attempt.verb in ("create", "patch"):
        kind = errors.ManifestRefused
    elif code == 403 and "exceeded quota" in said:
        kind = errors.QuotaExceeded
        summary = "A quota of namespace {attempt.namespace} refuses this."
        hint = "Ask for less, end other jobs there, or have the quota raised."
    elif code == 403 and "violates PodSecurity" in said:
        kind = errors.ManifestRefused
        summary = "Pod Security of namespace {attempt.namespace} refuses this pod."
        hint = (
            "Submit to a namespace whose label pod-security.kubernetes.io/enforce allows what is "
            "named here."
        )
    elif code == 403 and _names_cause(status, "NamespaceTerminating"):
        kind = ClusterError
        summary = "Namespace {attempt.namespace} is being deleted, and takes nothing new."
        hint = "Choose another namespace, or wait until this one is gone and create it again."
    elif code == 403 and "attempting to grant RBAC permissions" in said:
        summary = "The credentials may not give away rights that they do not have."
        hint = (
            "Ask for a Role with these rights, or name an account that has them already: "
            "kubernetes.service_account."
        )
    elif code >= 500 or code == 429:
        kind = errors.ClusterUnreachable
        summary = "The API server {attempt.server} failed, or is too busy."
        hint = "Try again later."
    return kind(summary.format(attempt=attempt), received=received, hint=hint)


_BY_CODE: dict[int, tuple[type[ClusterError], str]] = {
    400: (ClusterError, "The API server cannot use this request."),
    401: (
        errors.CredentialsRefused,
        "The API server {attempt.server} does not accept the credentials; they may have expired. "
        "Log in again, or choose another context.",
    ),
    403: (
        errors.ClusterForbidden,
        "The credentials may not {attempt}. Ask for a Role with this verb on this resource.",
    ),
    409: (errors.ObjectConflict, "An object of this name exists, or it was changed in between."),
    410: (Expired, "The API server no longer keeps this version."),
    413: (errors.ManifestRefused, "The object is larger than the API server takes."),
    422: (errors.ManifestRefused, "The API server finds the manifest not valid."),
}


def _names_cause(status: dict[str, Any], reason: str) -> bool:
    """Whether the details of a refusal name this cause, which is more precise than its code."""
    causes = (status.get("details") or {}).get("causes") or []
    return any(cause.get("reason") == reason for cause in causes)


def _not_found(attempt: Attempt, status: dict[str, Any], received: str) -> ClusterError:
    details, kind = status.get("details") or {}, attempt.kind
    # For a missing object the details have a name, for a missing kind they do not.
    if not details.get("name") and kind.name == "MPIJob":
        return errors.NoMPIJobs(
            f"The cluster knows no {kind.resource} of {kind.api_version}.",
            received=received,
            hint="Install mpi-operator 0.8 in it, or choose another context.",
        )
    if not details.get("name"):
        summary = "The API server does not know this kind of object."
    elif details.get("kind") == "namespaces":
        summary = f"There is no namespace {details['name']}."
    elif attempt.verb != "create":
        summary = f"There is no {kind.name} of that name in namespace {attempt.namespace}."
    else:
        summary = f"Something that the {kind.name} {attempt.name} refers to does not exist."
    return errors.ObjectNotFound(summary, received=received)
