"""The API server of a cluster: plain dicts in and out, every failure one of our errors.

The requests carry the credentials of the moment.
"""

import contextlib
import json
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from edl_horovod.cluster.credentials import Place, find_cluster
from edl_horovod.cluster.objects import VERSION, kind_of
from edl_horovod.cluster.refusals import Attempt, Expired, refusal, refusal_of_status
from edl_horovod.errors import ClusterUnreachable, MissingDependency, NoCluster, how_to_install

log = logging.getLogger(__name__)

try:
    import urllib3
    import yaml
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config import ConfigException, incluster_config, kube_config
except ImportError as e:
    raise MissingDependency(
        f"Talking to a cluster needs a package that is not installed: {e}. To install it where "
        f"this command runs, {how_to_install('kubernetes')}"
    ) from e


Object = dict[str, Any]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
KEEPALIVE_SECONDS = 10
VANISHED_SECONDS = 20
"""An idle connection is probed after the first time, and broken after the second. A followed log
may be silent for hours, but must not hang if the host is gone."""


def _connect(place: Place) -> ApiClient:
    """Create a client with the current credentials."""
    configuration = Configuration()
    # A connection that the server closed while it was idle is worth a second try, an answer of a
    # busy server that says when to come back too. Longer trouble is for who called.
    configuration.retries = urllib3.Retry(
        connect=0, read=1, redirect=0, status=2, other=0, raise_on_status=False
    )
    configuration.socket_options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS // 2),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_SECONDS * 1000),
    ]
    try:
        _load(place, configuration)
        client = ApiClient(configuration)
        # From Python 3.13 on, certificates must follow all of RFC 5280 by default. Those of many
        # clusters lack an authority key identifier, and other clients accept them.
        mode = ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE
        context = urllib3.util.ssl_.create_urllib3_context(cert_reqs=mode)
        is_encrypted = configuration.host.startswith("https")
        if is_encrypted and configuration.verify_ssl and not configuration.ssl_ca_cert:
            context.load_default_certs()  # It takes 0.06 s.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context
        return client
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as e:
        raise NoCluster("The credentials cannot be used.", received=f"{place}: {e}") from e


def _load(place: Place, configuration: Configuration) -> None:
    if not place.kubeconfig:
        incluster_config.InClusterConfigLoader(
            token_filename=place.service_account / "token",
            cert_filename=place.service_account / "ca.crt",
        ).load_and_set(configuration)
        return
    merged = kube_config.KubeConfigMerger(place.kubeconfig)
    loader = kube_config.KubeConfigLoader(
        config_dict=merged.config,
        active_context=place.context,
        config_base_path=None,
        config_persister=merged.save_changes,
    )
    loader.load_and_set(configuration)


@contextlib.contextmanager
def _explained(attempt: Attempt) -> Iterator[None]:
    """Convert failures below HTTP, and answers without JSON, to errors that name the request."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, ApiException, OSError, ValueError) as e:
        cause = e.reason if isinstance(e, urllib3.exceptions.MaxRetryError) else e
        raise ClusterUnreachable(
            f"The API server {attempt.server} cannot be reached, or broke the connection.",
            received=f"{attempt}: {cause}",
            hint="Check the address, the network, the certificates and the proxy.",
        ) from e


WATCH_SECONDS = 60
"""The server ends a watch after this time; the next watch continues from there. A server that hangs
is noticed half a minute later, because a watch may be silent until its end."""
PAGE_SIZE = 500


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    items: list[Object]
    version: str
    """Resource version of the whole list, from which a watch can continue."""


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object."""

    kind: str
    """`ADDED`, `MODIFIED`, `DELETED`, or `BOOKMARK`, which contains only a version."""
    object: Object

    @property
    def version(self) -> str:
        """The version from which a watch can continue after this event."""
        return str(self.object["metadata"]["resourceVersion"])


class Cluster:
    """The API of one namespace of a cluster; close it, or use it in a `with`.

    It sends one request at a time.
    """

    def __init__(self, place: Place) -> None:
        """Read the credentials; nothing is sent yet.

        Raises:
            NoCluster: The credentials cannot be used.
        """
        self._place = place
        self._client = _connect(place)

    @classmethod
    def connect(cls, *, context: str = "", namespace: str = "") -> "Cluster":
        """Create the client of the configured cluster; see `find_cluster`.

        Raises:
            NoCluster: None is configured.
        """
        return cls(find_cluster(context=context, namespace=namespace))

    @property
    def namespace(self) -> str:
        """The namespace of all requests, except lists of all namespaces."""
        return self._place.namespace

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host)

    def server_version(self) -> str:
        """The version of Kubernetes, for instance `v1.36.1`. Raises ClusterError."""
        attempt = Attempt(verb="get", kind=VERSION, namespace=None, server=self.server)
        return str(self._answer(attempt)["gitVersion"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- one object. All of these raise ClusterError.

    def get(self, kind: str, name: str) -> Object:
        """Read an object."""
        return self._answer(self._attempt("get", kind, name=name))

    def create(self, manifest: Mapping[str, Any], *, is_dry_run: bool = False) -> Object:
        """Create an object, or let the server only check it; returns it with the server's defaults.

        The namespace of the manifest, if it has one, is this one.
        """
        kind = kind_of(manifest["kind"], manifest["apiVersion"])
        name = manifest["metadata"].get("name", "")
        attempt = self._attempt("create", kind.name, name=name)
        return self._answer(attempt, "POST", query=_checks(is_dry_run), body=manifest)

    def patch(
        self, kind: str, name: str, changes: Mapping[str, Any], *, is_dry_run: bool = False
    ) -> Object:
        """Change an object by a merge patch; None removes a key.

        With `metadata.resourceVersion` it fails if the object was changed by another client.
        In a dry run the server checks the patch and changes nothing.
        """
        attempt = self._attempt("patch", kind, name=name)
        return self._answer(attempt, "PATCH", query=_checks(is_dry_run), body=changes)

    def delete(
        self, kind: str, name: str, *, grace_seconds: int | None = None, uid: str = ""
    ) -> None:
        """Delete an object and the objects that it owns.

        `grace_seconds` replaces the pod's own; 0 kills at once. With a UID another object that has
        the name by now stays.
        """
        options: Object = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        self._answer(self._attempt("delete", kind, name=name), "DELETE", body=options)

    def log_lines(
        self, pod: str, *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """Yield the log of a pod's only container: all lines, or the last `tail` ones.

        Where it is followed, it goes on until the container ends, or this iterator is closed.
        """
        query = {"follow": "true"} if follow else {}
        query |= {} if tail is None else {"tailLines": str(tail)}
        attempt = self._attempt("get", "Pod", name=pod, subresource="log")
        for line in self._lines(attempt, query, None if follow else ANSWER_SECONDS):
            yield line.decode("utf-8", "replace").rstrip("\n")

    # -- many objects

    def find(
        self, kind: str, *, labels: str = "", fields: str = "", all_namespaces: bool = False
    ) -> list[Object]:
        """List the objects that match a label selector and a field selector."""
        selectors = _selectors(labels, fields)
        try:
            pages = list(self._pages(kind, selectors, all_namespaces))
        except Expired:  # The list expired while it was read; try again from its start.
            pages = list(self._pages(kind, selectors, all_namespaces))
        return [item for page in pages for item in page.items]

    def pages(self, kind: str, *, labels: str = "") -> Iterator[Page]:
        """Yield the objects that match a label selector, a few hundred at a time.

        Raises:
            Expired: It took too long; begin again.
        """
        return self._pages(kind, _selectors(labels), False)

    def watch(self, kind: str, version: str, *, labels: str = "") -> Iterator[WatchEvent]:
        """Yield the changes after a version, until the server ends the watch, after about a minute.

        The version is that of the list, or of the last event that was seen. When this returns, the
        server has answered; each change is read as it comes.

        Raises:
            Expired: The changes since that version are no longer kept; list again. While the
                changes are read, too.
        """
        query = {**_selectors(labels), "watch": "true", "resourceVersion": version}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        attempt = self._attempt("watch", kind)
        return _events(attempt, self._lines(attempt, query, WATCH_SECONDS + ANSWER_SECONDS))

    def _pages(
        self, kind: str, selectors: Mapping[str, str], all_namespaces: bool
    ) -> Iterator[Page]:
        attempt = self._attempt("list", kind, all_namespaces=all_namespaces)
        query = {**selectors, "limit": str(PAGE_SIZE)}
        while True:
            answer = self._answer(attempt, query=query)
            metadata = answer["metadata"]
            for item in answer["items"]:
                # The server omits these fields in the items of a list.
                item.setdefault("kind", attempt.kind.name)
                item.setdefault("apiVersion", attempt.kind.api_version)
            yield Page(answer["items"], metadata["resourceVersion"])
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    def _attempt(
        self, verb: str, kind: str, *, all_namespaces: bool = False, **part: str
    ) -> Attempt:
        known_kind = kind_of(kind)
        is_inside = known_kind.is_namespaced and not all_namespaces
        namespace = self.namespace if is_inside else None
        return Attempt(verb, known_kind, namespace, self.server, **part)

    # -- requests

    def _answer(self, attempt: Attempt, method: str = "GET", **parts: Mapping[str, Any]) -> Object:
        """Send a request, with a `query` and a `body` if need be; return the whole answer."""
        with _explained(attempt):
            response = self._send(attempt, ANSWER_SECONDS, method, **parts)
            answer: Object = json.loads(response.data)
            return answer

    def _lines(
        self, attempt: Attempt, query: Mapping[str, str], answer_seconds: float | None
    ) -> Iterator[bytes]:
        """Send a request, and return the lines of the answer, which are read as they arrive."""
        with _explained(attempt):
            response = self._send(attempt, answer_seconds, query=query)

        def read() -> Iterator[bytes]:
            # Not `release_conn`: the next request would read the rest of this answer.
            with _explained(attempt), contextlib.closing(response):
                yield from response

        return read()

    def _send(
        self,
        attempt: Attempt,
        answer_seconds: float | None,
        method: str = "GET",
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> urllib3.HTTPResponse:
        """Send a request; `answer_seconds` is the longest silence, None for no limit."""
        headers = {"Accept": "application/json"}
        if body is not None:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"

        def send_once() -> urllib3.HTTPResponse:
            request = self._client.param_serialize(
                method,
                attempt.path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            timeouts = (CONNECT_SECONDS, answer_seconds)
            sent = self._client.call_api(*request, _request_timeout=timeouts)
            response: urllib3.HTTPResponse = sent.response
            return response

        response = send_once()
        if response.status == 401:
            # A token expires within an hour; read the next one from the file or login program.
            log.debug("%s: the credentials are read again", attempt)
            response.drain_conn()
            self._client.close()
            self._client = _connect(self._place)
            response = send_once()
        if not 200 <= response.status < 300:
            raise refusal(attempt, response.status, response.data)
        return response


def _events(attempt: Attempt, lines: Iterator[bytes]) -> Iterator[WatchEvent]:
    for line in lines:
        with _explained(attempt):  # The answer may be truncated.
            event = json.loads(line)
        if event["type"] == "ERROR":
            raise refusal_of_status(attempt, event["object"])
        yield WatchEvent(event["type"], event["object"])


def _checks(is_dry_run: bool) -> dict[str, str]:
    # Refuse unknown fields; old servers do not know this parameter, and drop such fields.
    return {"fieldValidation": "Strict", **({"dryRun": "All"} if is_dry_run else {})}


def _selectors(labels: str, fields: str = "") -> dict[str, str]:
    asked = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in asked.items() if value}
