"""A real S3 server on loopback (moto's), with its requests counted and faults on demand."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Response

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}
BUCKET = "bucket"


@dataclass(frozen=True)
class Request:
    method: str
    key: str
    """What is asked for: `bucket/name`."""
    num_bytes: int
    """Of the response's body."""


@dataclass
class S3Server:
    """The server; `faults` are (status, code) that are given instead of answers, in turn."""

    requests: list[Request] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    stall_seconds: float = 0.0
    url: str = ""

    def __call__(self, environ, start_response):
        is_ours = not environ["PATH_INFO"].startswith("/moto-api")
        if is_ours and self.stall_seconds:
            time.sleep(self.stall_seconds)
        if is_ours and self.faults:
            status, code = self.faults.pop(0)
            body = f"<Error><Code>{code}</Code><Message>{code} on purpose</Message></Error>"
            answer = Response(body, status, content_type="application/xml")
        else:
            answer = Response.from_app(self._moto, environ)
        if is_ours:
            name = environ["PATH_INFO"].lstrip("/")
            num_bytes = 0 if environ["REQUEST_METHOD"] == "HEAD" else len(answer.get_data())
            self.requests.append(Request(environ["REQUEST_METHOD"], name, num_bytes))
        return answer(environ, start_response)

    def __post_init__(self):
        from moto.moto_server import werkzeug_app

        self._moto = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)

    @property
    def environment(self) -> dict[str, str]:
        """What a user would set to work with this server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def gets(self, suffix: str) -> list[Request]:
        """The reads of objects whose name ends so."""
        return [r for r in self.requests if r.method == "GET" and r.key.endswith(suffix)]

    def put(self, name: str, data: bytes) -> None:
        import boto3  # Only the few tests that need it wait for its import.

        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
        )
        with contextlib.closing(client):
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key=name, Body=data, ACL="public-read")


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def serve() -> Iterator[S3Server]:
    """Serve on a free port of loopback."""
    server = S3Server()
    listener = make_server("127.0.0.1", 0, server, threaded=True, request_handler=_Quiet)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
