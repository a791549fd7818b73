"""Remove passwords and tokens from the URLs in texts that are shown or stored."""

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
    """Remove users, passwords and queries that grant access from the URLs in a text.

    The user of an ssh URL stays: it names an account and grants no access.
    """
    return _QUERY.sub(_without_query, _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    user = found["user"].partition(":")[0] if found["scheme"].endswith("ssh") else ""
    return f"{found['scheme']}://{user}@" if user else f"{found['scheme']}://"


def _without_query(found: re.Match[str]) -> str:
    return f"{found['url']}?..." if _SECRET.search(found["query"]) else found[0]
