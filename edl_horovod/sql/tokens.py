"""The words of a program, by sqlglot's tokenizer: where each begins, and what is quoted."""

import functools
import re
from dataclasses import dataclass
from enum import Enum

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType
from sqlglot.tokens import Tokenizer

from edl_horovod.sql.problems import SourcePosition, StatementError

__all__ = ["Kind", "Token", "tokens_of"]

_OPENING = re.compile(r"'|\"|`|--|/\*|\$\w*\$|\{#")
_ENDS = {"--": "\n", "/*": "*/", "{#": "#}"}
_WORD = re.compile(r"[^\W\d][\w$]*")


class Kind(Enum):
    """What a token is."""

    WORD = "word"
    """A name or a keyword without quotes."""
    QUOTED = "quoted name"
    TEXT = "text"
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a program."""

    kind: Kind
    text: str
    """Of text and a quoted name what stands within the quotes."""
    start: int
    end: int
    """The offset behind it."""

    def is_word(self, *words: str) -> bool:
        """Whether it is one of some keywords, which are given in upper case."""
        return self.kind is Kind.WORD and self.text.upper() in words

    def is_symbol(self, *symbols: str) -> bool:
        """Whether it is one of some symbols."""
        return self.kind is Kind.SYMBOL and self.text in symbols

    @property
    def is_name(self) -> bool:
        """Whether it may name something."""
        return self.kind in (Kind.WORD, Kind.QUOTED)


def tokens_of(text: str, dialect: str) -> list[Token]:
    """The tokens of a program, without its comments.

    Names in square brackets are the one thing that a database may quote and this does not know: a
    bracket begins a list.

    Args:
        text: The program.
        dialect: sqlglot's name of the database's SQL, as `sqlite`.

    Raises:
        StatementError: A quote or a comment is not closed.
    """
    try:
        found = _tokenizer(dialect)().tokenize(text)
    except TokenError as e:
        raise StatementError(
            "A quote or a comment is not closed.",
            SourcePosition(text, _unclosed(text)),
            hint="Close it. A quote within text is written twice.",
        ) from e
    return [_token(text, each.token_type, each.text, each.start, each.end + 1) for each in found]


@functools.cache
def _tokenizer(dialect: str) -> type[Tokenizer]:
    """A dialect's tokenizer, for which [ begins a list and SHOW is a word like others."""
    base = Dialect.get_or_raise(dialect).tokenizer_class
    names = [quotes for quotes in base.IDENTIFIERS if quotes[0] != "["]
    return type("_Tokenizer", (base,), {"COMMANDS": set(), "IDENTIFIERS": names})


def _token(text: str, kind: TokenType, value: str, start: int, end: int) -> Token:
    if kind is TokenType.STRING:
        return Token(Kind.TEXT, value, start, end)
    if kind is TokenType.IDENTIFIER:
        return Token(Kind.QUOTED, value, start, end)
    if kind is TokenType.NUMBER:
        return Token(Kind.NUMBER, text[start:end], start, end)
    is_word = _WORD.fullmatch(text, start, end) is not None
    return Token(Kind.WORD if is_word else Kind.SYMBOL, text[start:end], start, end)


def _unclosed(text: str) -> int:
    """Where the quote or the comment begins that is not closed."""
    at = 0
    while opening := _OPENING.search(text, at):
        end = text.find(_ENDS.get(opening[0], opening[0]), opening.end())
        if end < 0:
            return len(text) if opening[0] == "--" else opening.start()
        at = end + len(_ENDS.get(opening[0], opening[0]))
    return max(0, len(text) - 1)
