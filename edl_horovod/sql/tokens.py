"""Splits a program into tokens, with sqlglot's tokenizer."""

import functools
import re
from dataclasses import dataclass
from enum import Enum

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType
from sqlglot.tokens import Tokenizer

from edl_horovod.sql.problems import SourcePosition, StatementError

__all__ = ["TokenKind", "Token", "tokens_of"]

_OPENING = re.compile(r"'|\"|`|--|/\*|\$\w*\$|\{#")
_ENDS = {"--": "\n", "/*": "*/", "{#": "#}"}
_WORD = re.compile(r"[^\W\d][\w$]*")


class TokenKind(Enum):
    """The kinds of tokens."""

    WORD = "word"
    """A name or a keyword without quotes."""
    QUOTED = "quoted name"
    TEXT = "text"
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a program."""

    kind: TokenKind
    text: str
    """Without the quotes, if it is quoted."""
    start: int
    """The offset of its first character in the program."""
    end: int
    """The offset after its last character."""

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords, which must be in upper case."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    def is_symbol(self, *symbols: str) -> bool:
        """Whether it is one of these symbols."""
        return self.kind is TokenKind.SYMBOL and self.text in symbols

    @property
    def is_name(self) -> bool:
        """Whether it can be a name."""
        return self.kind in (TokenKind.WORD, TokenKind.QUOTED)


def tokens_of(text: str, dialect: str) -> list[Token]:
    """The tokens of a program, without its comments.

    Names in square brackets, as some databases allow, are not supported: a bracket begins a list.

    Args:
        text: The program.
        dialect: sqlglot's name of the database's SQL, for example `sqlite`.

    Raises:
        StatementError: A quote or a comment is not closed.
    """
    try:
        tokens = _tokenizer(dialect)().tokenize(text)
    except TokenError as e:
        raise StatementError(
            "A quote or a comment is not closed.",
            SourcePosition(text, _unclosed_offset(text)),
            hint="Close it. A quote within text is written twice.",
        ) from e
    return [
        _token(text, token.token_type, token.text, token.start, token.end + 1) for token in tokens
    ]


@functools.cache
def _tokenizer(dialect: str) -> type[Tokenizer]:
    """A dialect's tokenizer, changed: [ begins a list, and SHOW is an ordinary word."""
    base = Dialect.get_or_raise(dialect).tokenizer_class
    names = [quotes for quotes in base.IDENTIFIERS if quotes[0] != "["]
    return type("_Tokenizer", (base,), {"COMMANDS": set(), "IDENTIFIERS": names})


def _token(text: str, kind: TokenType, value: str, start: int, end: int) -> Token:
    if kind is TokenType.STRING:
        return Token(TokenKind.TEXT, value, start, end)
    if kind is TokenType.IDENTIFIER:
        return Token(TokenKind.QUOTED, value, start, end)
    if kind is TokenType.NUMBER:
        return Token(TokenKind.NUMBER, text[start:end], start, end)
    is_word = _WORD.fullmatch(text, start, end) is not None
    return Token(TokenKind.WORD if is_word else TokenKind.SYMBOL, text[start:end], start, end)


def _unclosed_offset(text: str) -> int:
    """The offset of the first quote or comment that is not closed."""
    offset = 0
    while opening := _OPENING.search(text, offset):
        end = text.find(_ENDS.get(opening[0], opening[0]), opening.end())
        if end < 0:
            return len(text) if opening[0] == "--" else opening.start()
        offset = end + len(_ENDS.get(opening[0], opening[0]))
    return max(0, len(text) - 1)
