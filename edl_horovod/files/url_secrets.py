"""Remove passwords and tokens from the URLs in texts that are shown or stored."""

import re

# Each pattern scans a text in linear time: a scheme is matched only at the start of its run of
# letters, and a URL is matched with or without a query.
_USER = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]*)://(?P<user>[^/?#\s]*)@")
_QUERY = re.compile(r"(?P<url>https?://[^?#\s,]*)(?:\?(?P<query>[^\s,'\"]*))?")
_SECRET_KEYS = ("key", "sig", "pwd")
_SECRET = re.compile(r"(?i)signature|credential|token|secret|passw|auth|api.?key|access.?key")


def without_secrets(text: str) -> str:
    """Remove users, passwords and queries that grant access from the URLs in a text.

    The user of an ssh URL is not removed: it names an account and grants no access.
    """
    return _QUERY.sub(_without_query, _USER.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    user = match["user"].partition(":")[0] if match["scheme"].endswith("ssh") else ""
    return f"{match['scheme']}://{user}@" if user else f"{match['scheme']}://"


def _without_query(match: re.Match[str]) -> str:
    query = match["query"]
    return f"{match['url']}?..." if query and _grants_access(query) else match[0]


def _grants_access(query: str) -> bool:
    parts = (part.partition("=") for part in re.split("[&;]", query))
    keys = (key for key, equals, _ in parts if equals)
    return any(key.lower() in _SECRET_KEYS or _SECRET.search(key) for key in keys)
