"""The block of `edl doctor` for a report, without hosts, users, folders of home and secrets."""

import getpass
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from edl_horovod.health import Finding

_PUBLIC = {"", "default", "kubernetes", "localhost", "root"}
"""Names that tell nothing about anybody."""
_SECRET_NAME = re.compile(r"passw|secret|token|credential|auth|api_?key|access_?key", re.I)
_LEAST_SECRET = 6
"""Fewest characters of a variable's value that counts as a secret: `1` and `true` do not."""
_IN_HOME = re.compile(r"~/[^\s:;,'\")]+")
_PATTERNS = (
    (re.compile(r'(?<=\bUser ")[^"]+'), "USER"),
    (re.compile(r"(?<=\bhost=')[^']+"), "HOST"),
    (re.compile(r"(?<=://)[^/\s'\"),;]+"), "HOST"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 SECRET"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), "SECRET"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[a-z]_\w{20,}|\bgithub_pat_\w{20,}"), "SECRET"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "ADDRESS"),
    (re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|-\d)"), "ADDRESS"),
    (re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}:?[0-9A-Fa-f:]*"), "ADDRESS"),
    (re.compile(r"(?<![\w:])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*::[0-9A-Fa-f:]*"), "ADDRESS"),
)


def markdown(findings: Sequence[tuple[str, Finding]]) -> str:
    """Write a block of Markdown that says nothing about the machine's owner.

    Args:
        findings: The findings, each with the name of its check.
    """
    names = {word: "NAME" for _, finding in findings for word in finding.private}
    lines = [
        f"{finding.level:4}  {name:10}  {_redacted(' '.join(finding.text.split()), names)}"
        for name, finding in findings
    ]
    return "".join(f"{line}\n" for line in ("### edl doctor", "", "```text", *lines, "```"))


def _redacted(text: str, names: Mapping[str, str]) -> str:
    # What follows may change a part of a secret or of a name, of which the rest would then stay.
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = re.sub(secret, "SECRET", text, flags=re.IGNORECASE)
    text = _without(names, text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    text = _without(dict(_own_words()), text)
    # The block ends only where it is to end.
    return _IN_HOME.sub("~/...", text).replace("```", "'''")


def _without(words: Mapping[str, str], text: str) -> str:
    """Replace whole words; an underscore ends one, too."""
    # The longest first: one may be a part of another.
    for word in sorted(words, key=len, reverse=True):
        if word.lower() not in _PUBLIC:
            whole = re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", re.IGNORECASE)
            text = whole.sub(words[word], text)
    return text


def _secrets() -> Iterator[str]:
    """Patterns of the values of secret variables; any white space may stand for theirs."""
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and value.lower() not in _PUBLIC:
            words = value.split()
            if len(" ".join(words)) >= _LEAST_SECRET:
                yield r"\s+".join(map(re.escape, words))


def _own_words() -> Iterator[tuple[str, str]]:
    """Words about this machine and its user, each with what is shown in its place."""
    yield _user(), "USER"
    host = platform.node()
    yield host.partition(".")[0], "HOST"
    yield host, "HOST"
    home = Path.home()
    if home != Path("/"):
        yield str(home), "~"
        yield str(home.resolve()), "~"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A number without a name, as in many containers.
        return ""
