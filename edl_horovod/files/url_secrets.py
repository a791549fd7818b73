"""Passwords and tokens in URLs: found, and left out of what is shown or written down."""

import re

__all__ = ["without_secrets"]

_USER = re.compile(r"(?P<scheme>[A-Za-z0-9+.-]*)://(?P<user>[^/?#\s]*)@")
_QUERY = re.compile(r"(?P<url>https?://[^?#\s,]*)\?(?P<query>[^\s,'\"]*)")
_SECRET = re.compile(
    r"(?:^|[&;])(?:key|sig|pwd|[^=&;]*(?:signature|credential|token|secret|passw|auth|api.?key"
    r"|access.?key)[^=&;]*)=",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A text in whose URLs stand no user, password or query that lets in who has it.

    The user of an ssh URL stays: it names an account and lets nobody in.
    """
    return _QUERY.sub(_without_query, _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    user = found["user"].partition(":")[0] if found["scheme"].endswith("ssh") else ""
    return f"{found['scheme']}://{user}@" if user else f"{found['scheme']}://"


def _without_query(found: re.Match[str]) -> str:
    return f"{found['url']}?..." if _SECRET.search(found["query"]) else found[0]
