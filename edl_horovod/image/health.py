"""What `edl doctor` looks at for images: the builder and the registry; it uploads nothing."""

import base64
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from edl_horovod.errors import MissingDependency, RegistryError
from edl_horovod.health import Finding, Scope
from edl_horovod.image import job

ANSWER_SECONDS = 10.0
_DOCKER_HUB = "docker.io"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_LOG_IN = "Log in: docker login, or podman login, with the registry's name."
_CHECK_NAME = "Check the repository's name, or ask those who run the registry."
_ACCEPTED = 202
_REFUSED = (401, 403)
"""The statuses of a registry that asks for a login, or for another one."""


def check_builder(_scope: Scope) -> Iterator[Finding]:
    """The program that builds images, Docker or Podman."""
    private = tuple(map(_host, job.sockets()))
    try:
        builder = job.connect()
    except MissingDependency as error:
        paths = [Path(host.removeprefix("unix://")) for host in job.sockets()]
        is_set_up = "DOCKER_HOST" in os.environ or any(path.exists() for path in paths)
        text = f"{error.problem} Only jobs whose image is built here need one."
        yield Finding("FAIL" if is_set_up else "NONE", text, error.hint, private)
        return
    with closing(builder):
        version = builder.version()
        parts = [part["Name"] for part in (version.get("Components") or ())]
        name = "Podman" if "Podman Engine" in parts else "Docker"
        text = f"{name} answers, version {version['Version']}, at {builder.base_url}"
        yield Finding("OK", text, private=private)


def check_registry(scope: Scope) -> Iterator[Finding]:
    """Whether images can be pushed to the repository; an upload is opened, and cancelled empty."""
    if not scope.image_repository:
        text = "not asked for: --image-repository=REGISTRY/PATH names the place of your images"
        yield Finding("NONE", text)
        return
    repository = scope.image_repository
    private = {repository, repository.partition("/")[0]}
    try:
        registry = _Registry.of(repository, private).reached()
        yield Finding("OK", f"{registry.base_url} answers", private=tuple(private))
        status = registry.try_upload()
    except RegistryError as error:
        yield Finding("FAIL", error.facts, error.hint, tuple(private))
        return
    whose = "with the login that is here" if registry.login else "without a login"
    if status == _ACCEPTED:
        yield Finding("OK", f"{repository} takes pushes {whose}", private=tuple(private))
    else:
        text = f"{repository} takes no pushes {whose}: HTTP {status}"
        fix = _LOG_IN if status in _REFUSED else _CHECK_NAME
        yield Finding("FAIL", text, fix, tuple(private))


@dataclass(frozen=True)
class _Answer:
    """An answer of a registry."""

    status: int
    headers: Mapping[str, str]
    """With names in lower case."""
    content: Mapping[str, Any]
    """The JSON object in it; empty for anything else."""


@dataclass(frozen=True, kw_only=True)
class _Registry:
    """A repository in a registry, by the API of the OCI's distribution specification."""

    base_url: str
    name: str
    login: Mapping[str, str]
    """The user's credentials as Docker stores them, with keys in lower case; empty for none."""
    private: set[str]
    """Gets the host of tokens when the registry names it."""

    @classmethod
    def of(cls, repository: str, private: set[str]) -> "_Registry":
        """Find the registry of a repository, and the login for it.

        Args:
            repository: The repository with its registry.
            private: The words that a report must not show.

        Raises:
            RegistryError: The program that keeps the login failed.
        """
        host, _, name = repository.partition("/")
        if "." not in host and ":" not in host and host != "localhost":
            host, name = _DOCKER_HUB, repository if name else f"library/{repository}"
        server = "registry-1.docker.io" if host == _DOCKER_HUB else host
        login = _login(repository)
        return cls(base_url=f"https://{server}", name=name, login=login, private=private)

    def reached(self) -> "_Registry":
        """Reach the registry over HTTPS, or on this machine also over HTTP, as builders do.

        Raises:
            RegistryError: It does not answer, or is no registry.
        """
        try:
            status = _ask("GET", f"{self.base_url}/v2/").status
        except RegistryError:
            if not _is_here(self.base_url) or self.base_url.startswith("http:"):
                raise
            return replace(self, base_url=self.base_url.replace("https:", "http:", 1)).reached()
        if status not in (200, 401):
            raise RegistryError(
                f"{self.base_url} is no registry, or refuses this machine.",
                received=f"GET /v2/: HTTP {status}",
                hint="Check the name of the registry and the proxy.",
            )
        return self

    def try_upload(self) -> int:
        """The status of an upload with the login, which is then cancelled: nothing is uploaded.

        Raises:
            RegistryError: The registry does not answer.
        """
        url = f"{self.base_url}/v2/{self.name}/blobs/uploads/"
        headers: dict[str, str] = {}
        answer = _ask("POST", url)
        if answer.status == 401:
            headers = self._authorization(answer.headers.get("www-authenticate", ""))
            answer = _ask("POST", url, headers) if headers else answer
        if answer.status != _ACCEPTED:
            return answer.status
        # Without this the registry itself forgets the upload after some days.
        with suppress(RegistryError, ValueError):
            upload = urljoin(url, answer.headers.get("location", ""))
            # The upload may be on another host, which must not get the login.
            is_own = urlsplit(upload)[:2] == urlsplit(self.base_url)[:2]
            _ask("DELETE", upload, headers if is_own else {})
        return answer.status

    def _authorization(self, challenge: str) -> dict[str, str]:
        """The header that answers a registry's challenge; empty if the login does not do."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            return self._basic()
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.get("realm", "")
        if not (realm.startswith("https://") or _is_here(realm)):
            return {}  # A login is sent over TLS only.
        self.private.add(_host(realm))
        query = {"scope": f"repository:{self.name}:pull,push", "client_id": "edl"}
        query |= {"service": parameters["service"]} if "service" in parameters else {}
        if token := self.login.get("identitytoken"):
            form = query | {"grant_type": "refresh_token", "refresh_token": token}
            answer = _ask("POST", realm, body=urlencode(form).encode())
        else:
            answer = _ask("GET", f"{realm}?{urlencode(query)}", self._basic())
        token = answer.content.get("token") or answer.content.get("access_token")
        return {"Authorization": f"Bearer {token}"} if answer.status == 200 and token else {}

    def _basic(self) -> dict[str, str]:
        user = self.login.get("username")
        if not user:
            return {}
        pair = f"{user}:{self.login.get('password', '')}".encode()
        return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _ask(
    method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> _Answer:
    """Send a request.

    Raises:
        RegistryError: There is no answer.
    """
    data = body if method == "POST" else None
    request = Request(url, data=data, headers=dict(headers or {}), method=method)
    try:
        # Without redirects: a login would go to the other server, too.
        with build_opener(_NoRedirects).open(request, timeout=ANSWER_SECONDS) as answer:
            return _Answer(answer.status, _lower(answer.headers), _object(answer.read()))
    except HTTPError as error:
        with error:
            return _Answer(error.code, _lower(error.headers), {})
    except (OSError, HTTPException, ValueError) as error:
        host = urlsplit(url).netloc
        cause = error.reason if isinstance(error, URLError) else error
        raise RegistryError(f"{host} does not answer: {cause}.", hint=_hint(cause)) from error


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, because a login would go to the other server, too."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _login(repository: str) -> dict[str, str]:
    try:
        login = job.login_of(repository) or {}
    except ImportError:  # Without the SDK nothing is pushed from here, but a registry may answer.
        return {}
    return {key.lower(): str(value) for key, value in login.items() if value}


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _object(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _is_here(url: str) -> bool:
    """Whether a URL is one of this machine's own addresses, to which builders also speak HTTP."""
    host = _host(url)
    return host in ("localhost", "::1") or host.startswith("127.")


def _host(url: str) -> str:
    """The host of a URL, also of one without its scheme; empty if it names none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def _hint(cause: object) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "Have the certificate of its authority installed here and where the builder runs."
    if isinstance(cause, ssl.SSLError):
        return "If it has no TLS, the builder must be told that it is insecure."
    if isinstance(cause, socket.gaierror):
        return "Check the name of the registry."
    return "Check the name of the registry, the network and the proxy."
