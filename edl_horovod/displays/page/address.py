"""The address of the page, and the host names by which it may be requested."""

import errno
import ipaddress
import os
import socket
from urllib.parse import urlsplit

from edl_horovod.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8265

_ANY = ("0.0.0.0", "::", "")
_MAX_PORT = 65535


def url(host: str = HOST, port: int = PORT) -> str:
    """The URL to type into a browser for a server that listens on this name or address."""
    name = socket.gethostname() if host in _ANY else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket, which the caller closes; port 0 takes a free one.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"A port is between 0 and {_MAX_PORT}.", received={"--port": port})
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of {host} is taken.",
                received={"--port": port},
                hint="Choose another one; --port 0 takes a free one.",
            ) from error
        raise ConfigError(
            f"Nothing can be served there: {_reason(error)}.",
            received=f"--host={host}, --port={port}",
            hint="Give an address of this machine and a port that you may use.",
        ) from error


def is_name_of_ours(header: str, host: str) -> bool:
    """Whether the `Host` header of a request names this server, which listens on `host`.

    A foreign web page can have its own host name resolve to this machine and then read what is
    served here (DNS rebinding). It can do so neither with an address nor with our host name.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", host.lower(), socket.gethostname().lower()):
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _reason(error: OSError) -> str:
    """The reason without the address, which the message contains already."""
    is_of_names = isinstance(error, socket.gaierror) or error.errno is None
    return str(error.args[-1]) if is_of_names else os.strerror(error.errno or 0)
