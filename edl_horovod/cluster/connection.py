"""Requests to an API server with the credentials of the moment; every failure one of our errors."""

import contextlib
import json
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.cluster.credentials import Place
from edl_horovod.cluster.refusals import Attempt, refusal
from edl_horovod.errors import ClusterUnreachable, MissingDependency, NoCluster, how_to_install

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

__all__ = ["ANSWER_SECONDS", "Call", "Connection", "Object", "broken"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
KEEPALIVE_SECONDS = 10
VANISHED_SECONDS = 20
"""An idle connection is probed after the first and broken after the second: a log that is followed
may be silent for hours, and must not hang on a host that is gone."""


@dataclass(frozen=True)
class Call:
    """One request."""

    attempt: Attempt
    method: str = "GET"
    query: Sequence[tuple[str, str]] = ()
    body: Mapping[str, Any] | None = None
    answer_seconds: float | None = field(default_factory=lambda: ANSWER_SECONDS)
    """Longest silence; None means any."""


class Connection:
    """Sends requests, one at a time; close it."""

    def __init__(self, place: Place) -> None:
        """Read the credentials; nothing is sent yet.

        Raises:
            NoCluster: The credentials cannot be used.
        """
        self._place = place
        self._client = _connect(place)

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host)

    def close(self) -> None:
        """Close what is open."""
        self._client.close()

    def answer(self, call: Call) -> Object:
        """The whole answer. Raises ClusterError."""
        with _explained(call.attempt):
            answer: Object = json.loads(self._send(call).data)
            return answer

    def lines(self, call: Call) -> Iterator[bytes]:
        """Send now; the lines are read as they come. Raises ClusterError, while they are, too."""
        with _explained(call.attempt):
            response = self._send(call)
        return _read_lines(call.attempt, response)

    def _send(self, call: Call) -> urllib3.HTTPResponse:
        response = self._send_once(call)
        if response.status == 401:
            # A token lives for an hour or less: the file, or the login program, has the next one.
            log.debug("%s: the credentials are read again", call.attempt)
            response.drain_conn()
            self._client.close()
            self._client = _connect(self._place)
            response = self._send_once(call)
        if not 200 <= response.status < 300:
            raise refusal(call.attempt, response.status, response.data)
        return response

    def _send_once(self, call: Call) -> urllib3.HTTPResponse:
        headers = {"Accept": "application/json"}
        if call.body is not None:
            kind = "merge-patch+json" if call.method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"
        request = self._client.param_serialize(
            call.method,
            call.attempt.path,
            query_params=list(call.query),
            header_params=headers,
            body=call.body,
            auth_settings=["BearerToken"],
        )
        timeouts = (CONNECT_SECONDS, call.answer_seconds)
        response: urllib3.HTTPResponse = self._client.call_api(
            *request, _request_timeout=timeouts
        ).response
        return response


def _connect(place: Place) -> ApiClient:
    """A client with the credentials as they are now."""
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
        return ApiClient(configuration)
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


def _read_lines(attempt: Attempt, response: urllib3.HTTPResponse) -> Iterator[bytes]:
    with _explained(attempt):
        try:
            yield from response
        finally:
            # Not `release_conn`: what is left of an unfinished answer must not be the next one.
            response.close()


@contextlib.contextmanager
def _explained(attempt: Attempt) -> Iterator[None]:
    """Turn failures below HTTP into an error that names what was tried."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, ApiException, OSError) as e:
        raise broken(attempt, e) from e


def broken(attempt: Attempt, error: Exception) -> ClusterUnreachable:
    """The error for an answer that did not arrive or is incomplete."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    return ClusterUnreachable(
        f"The API server {attempt.server} cannot be reached, or broke the connection.",
        received=f"{attempt}: {cause}",
        hint="Check the address, the network, the certificates and the proxy.",
    )
