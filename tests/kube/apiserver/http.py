"""The HTTP side: paths, verbs, lists in pages, watches, logs, and failures on demand."""

import asyncio
import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from edl_horovod.cluster.objects import Kind
from tests.kube.apiserver import patches
from tests.kube.apiserver.admission import NAMESPACE, WITH_STATUS, Admission, Request, User
from tests.kube.apiserver.store import Refused, Store
from tests.kube.apiserver.watching import Asked, Watch, gone, whole

MAX_REQUEST_BYTES = 3 * 1024 * 1024
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
LOG_POLL_SECONDS = 0.05


@dataclass
class Faults:
    """What the server does wrong, until it is told otherwise."""

    delay_seconds: float = 0.0
    """Before each answer."""
    drop: int = 0
    """So many requests end with a closed connection instead of an answer."""
    drop_only: str = ""
    """Of these requests alone, by their HTTP method; empty means all."""
    fail: list[int] = field(default_factory=list)
    """Statuses that are given instead of answers, in turn."""
    cut_after_bytes: int = 0
    """Watches end in the middle of a line after so many bytes; 0 is never."""
    watch_stall_seconds: float = 0.0
    """An open watch says nothing for so long, not even that it ends."""
    is_gone_a_status: bool = False
    """A version that is too old is answered by HTTP 410, not by an event; servers do both."""


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    verb: str
    path: str
    query: dict[str, str]
    user: str


@dataclass
class _Path:
    kind: Kind
    namespace: str
    name: str
    subresource: str


class Api:
    """Answers requests from a store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.bookmark_seconds = 60.0
        self.kubernetes_version = "1.36"
        self.log_files: dict[tuple[str, str], Path] = {}
        """What the pods (namespace, name) write."""
        self._store = store
        self._admission = admission
        self._streams: set[_Stream] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/version", self._version)
        app.router.add_route("*", "/{path:apis?/.*}", self._serve)
        return app

    def break_streams(self) -> None:
        """Cut all watches and followed logs."""
        for stream in list(self._streams):
            stream.abort()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _version(self, request: web.Request) -> web.Response:
        major, minor = self.kubernetes_version.split(".")
        # Vendors write a plus behind the minor version, and more behind the whole one.
        git = f"v{major}.{minor.removesuffix('+')}.2"
        answer = {"major": major, "minor": minor, "gitVersion": git}
        return web.json_response(answer)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refused as e:
            return web.json_response(e.status, status=e.code)
        except web.HTTPRequestEntityTooLarge:
            refused = Refused(413, "RequestEntityTooLarge", "Request entity too large")
            return web.json_response(refused.status, status=413)
        except (ValueError, KeyError) as e:  # Of a selector or a patch.
            return web.json_response(Refused(400, "BadRequest", repr(e)).status, status=400)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await self._misbehave(request)
        user = self._user(request)
        path = self._path(request)
        if path is None:
            return web.Response(status=404, text="404 page not found\n")
        is_watch = request.query.get("watch") in ("true", "1")
        verb = VERBS.get(request.method) or ("get" if path.name else "list")
        if verb == "list" and is_watch:
            verb = "watch"
        self.seen.append(Seen(verb, request.path, dict(request.query), user.name))
        # A Role in a namespace may allow reading that namespace itself.
        place = path.name if path.kind is NAMESPACE else path.namespace
        self._admission.authorize(
            user, Request(verb, path.kind.resource, place, path.name, path.subresource)
        )
        if path.subresource == "log":
            return await self._logs(request, path)
        if verb == "watch":
            return await self._watch(request, path)
        if verb == "list":
            return web.json_response(self._list(request, path))
        answer, status = await self._change(request, path, verb)
        return web.json_response(answer, status=status)

    async def _misbehave(self, request: web.Request) -> None:
        if self.faults.delay_seconds:
            await asyncio.sleep(self.faults.delay_seconds)
        if self.faults.drop and self.faults.drop_only in ("", request.method):
            self.faults.drop -= 1
            request.transport.abort()
            raise Refused(500, "InternalError", "dropped")
        if self.faults.fail:
            code = self.faults.fail.pop(0)
            raise Refused(code, "ServiceUnavailable", "on purpose")

    def _user(self, request: web.Request) -> User:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        user = self._admission.tokens.get(token.strip())
        if scheme.lower() != "bearer" or user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def _path(self, request: web.Request) -> _Path | None:
        parts = request.match_info["path"].split("/")
        size = 2 if parts[0] == "api" else 3
        group_version, names = "/".join(parts[1:size]), parts[size:]
        namespace = ""
        if names[:1] == ["namespaces"] and len(names) > 2:
            namespace, names = names[1], names[2:]
        if not names:
            return None
        kind = self._admission.kind(group_version, names[0])
        if kind is None or len(names) > 3:
            return None
        name, subresource = [*names[1:], "", ""][:2]
        return _Path(kind, namespace, name, subresource)

    # -- one object

    async def _change(self, request: web.Request, path: _Path, verb: str) -> tuple[dict, int]:
        kind, resource = path.kind, path.kind.resource
        is_dry_run = request.query.get("dryRun") == "All"
        if verb == "get":
            return whole(kind, self._store.get(resource, path.namespace, path.name)), 200
        body = json.loads(await request.read() or b"{}")
        if verb == "delete":
            body |= {"dryRun": request.query.get("dryRun") or body.get("dryRun")}
            item = self._store.delete(resource, path.namespace, path.name, body)
            return whole(kind, item), 200
        if kind.name == "LocalSubjectAccessReview":
            return whole(kind, self._admission.review(path.namespace, body)), 201
        if kind.name == "SelfSubjectAccessReview":
            return whole(kind, self._admission.self_review(self._user(request), body)), 201
        if verb == "create":
            return whole(kind, self._create(request, path, body, is_dry_run)), 201
        old = self._store.get(resource, path.namespace, path.name)
        if verb == "patch":
            wanted = request.headers["Content-Type"].partition(";")[0]
            if wanted == patches.STRATEGIC and kind.name == "MPIJob":
                raise Refused(415, "UnsupportedMediaType", "not a built-in kind")
            body = patches.apply(old, wanted, body)
        new = _part(path, old, body)
        if path.subresource != "status":
            is_strict = request.query.get("fieldValidation") == "Strict"
            new = self._admission.admit(kind, new, namespace=path.namespace, is_strict=is_strict)
        return whole(kind, self._store.update(resource, new, is_dry_run=is_dry_run)), 200

    def _create(self, request: web.Request, path: _Path, body: dict, is_dry_run: bool) -> dict:
        kind = path.kind
        said = (body.get("kind") or kind.name, body.get("apiVersion") or kind.api_version)
        if said != (kind.name, kind.api_version):
            raise Refused(400, "BadRequest", f"the object provided is no {kind.name}")
        if path.namespace:
            name = body.get("metadata", {}).get("name", "")
            self._admission.check_namespace(kind, name, path.namespace)
        is_strict = request.query.get("fieldValidation") == "Strict"
        body = self._admission.admit(kind, body, namespace=path.namespace, is_strict=is_strict)
        self._admission.check_quota(kind, body, path.namespace)
        self._admission.check_rights_given(self._user(request), kind, body, path.namespace)
        if kind.resource in WITH_STATUS and kind.name != "Pod":
            body.pop("status", None)
        if kind.name == "Pod":
            body["status"] = {"phase": "Pending"}
        return self._store.create(kind.resource, path.namespace, body, is_dry_run=is_dry_run)

    # -- many objects

    def _asked(self, request: web.Request, path: _Path) -> Asked:
        selectors = (request.query.get(f"{part}Selector", "") for part in ("label", "field"))
        return Asked(path.kind, path.namespace, *selectors)

    def _list(self, request: web.Request, path: _Path) -> dict:
        asked = self._asked(request, path)
        version, after = self._store.version, ""
        if token := request.query.get("continue"):
            version, after = json.loads(base64.b64decode(token))
            if version < self._store.oldest:
                raise gone(version)
        items = [
            item
            for item in self._store.items(path.kind.resource, path.namespace)
            if asked.wants(item) and _place(item) > after
        ]
        meta = {"resourceVersion": str(version)}
        limit = int(request.query.get("limit") or 0)
        if limit and len(items) > limit:
            items = items[:limit]
            token = json.dumps([version, _place(items[-1])]).encode()
            meta["continue"] = base64.b64encode(token).decode()
        kind = {"kind": f"{path.kind.name}List", "apiVersion": path.kind.api_version}
        return {**kind, "metadata": meta, "items": items}

    async def _watch(self, request: web.Request, path: _Path) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion") or 0)
        if version < self._store.oldest and self.faults.is_gone_a_status:
            raise gone(version)
        wants_bookmarks = request.query.get("allowWatchBookmarks") == "true"
        watch = Watch(
            self._store,
            self._asked(request, path),
            version,
            bookmark_seconds=self.bookmark_seconds if wants_bookmarks else float("inf"),
        )
        async with _Stream(self, request, "application/json") as stream:
            await asyncio.sleep(self.faults.watch_stall_seconds)
            await watch.run(stream.write, float(request.query.get("timeoutSeconds") or 1800))
        return stream.response

    async def _logs(self, request: web.Request, path: _Path) -> web.StreamResponse:
        self._store.get("pods", path.namespace, path.name)
        file = self.log_files.get((path.namespace, path.name))
        if file is None or not file.exists():
            message = f'container in pod "{path.name}" is waiting to start: ContainerCreating'
            raise Refused(400, "BadRequest", message)
        lines = file.read_bytes().splitlines(keepends=True)
        tail = request.query.get("tailLines")
        begin = max(0, len(lines) - int(tail)) if tail is not None else 0
        position = sum(map(len, lines))
        async with _Stream(self, request, "text/plain") as stream:
            await stream.write(b"".join(lines[begin:]))
            while request.query.get("follow") == "true":
                is_over = self._has_ended(path)
                with file.open("rb") as log:
                    log.seek(position)
                    news = log.read()
                position += len(news)
                if news:
                    await stream.write(news)
                elif is_over:
                    break
                await asyncio.sleep(LOG_POLL_SECONDS)
        return stream.response

    def _has_ended(self, path: _Path) -> bool:
        try:
            pod = self._store.get("pods", path.namespace, path.name)
        except Refused:
            return True
        return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class _Stream:
    """An answer that goes on; chunked, as an API server's."""

    def __init__(self, api: Api, request: web.Request, content_type: str) -> None:
        self._api = api
        self.request = request
        self._num_bytes = 0
        self.response = web.StreamResponse(headers={"Content-Type": content_type})

    async def __aenter__(self) -> "_Stream":
        self.response.enable_chunked_encoding()
        await self.response.prepare(self.request)
        self._api._streams.add(self)
        return self

    async def write(self, data: bytes) -> None:
        most = self._api.faults.cut_after_bytes
        if most and self._num_bytes + len(data) > most:
            await self.response.write(data[: most - self._num_bytes])
            self.request.transport.close()
            raise ConnectionResetError
        self._num_bytes += len(data)
        if data:
            await self.response.write(data)

    def abort(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()

    async def __aexit__(self, kind, error, trace) -> bool:
        self._api._streams.discard(self)
        # Who hung up, or was cut off, needs no answer.
        return kind is not None and issubclass(kind, ConnectionError)


def _part(path: _Path, old: dict, new: dict) -> dict:
    """The object after a change, of which only one part counts."""
    if path.kind.resource not in WITH_STATUS:
        return new
    if path.subresource == "status":
        meta = {**old["metadata"], "resourceVersion": new["metadata"].get("resourceVersion")}
        return {**old, "metadata": meta, "status": new.get("status", {})}
    parts = {key: value for key, value in new.items() if key != "status"}
    return {**parts, "status": old["status"]} if "status" in old else parts


def _place(item: dict) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
