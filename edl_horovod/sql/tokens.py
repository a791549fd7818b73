"""Splits a program into tokens, and reads those of a statement from left to right."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token as SqlglotToken
from sqlglot.tokenizer_core import TokenType
from sqlglot.tokens import Tokenizer

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.statements import SourcePosition, StatementError

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
    END = "end of the statement"
    """Comes after the last token, so that a reader need not ask whether there is one more."""


_QUOTED_KINDS = {TokenType.STRING: TokenKind.TEXT, TokenType.IDENTIFIER: TokenKind.QUOTED}


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


class Cursor:
    """Reads the tokens of a statement one after the other."""

    def __init__(self, text: str, tokens: Sequence[Token], index: int = 0) -> None:
        """Start at one of the tokens.

        Args:
            text: The whole program, which positions refer to.
            tokens: The tokens of one statement without its semicolon; at least one.
            index: Index of the first token to read.
        """
        self.text = text
        self._tokens = (*tokens, Token(TokenKind.END, "", tokens[-1].end, tokens[-1].end))
        self._index = index

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or a later one; the `END` after the last one."""
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def take(self, expected: str) -> Token:
        """Move past the next token and return it.

        Args:
            expected: What is expected; the error begins with it if there is no token left.
        """
        token = self.peek()
        if token.kind is TokenKind.END:
            raise self.problem(f"{expected} is missing at the end.", token)
        self._index += 1
        return token

    def skip_symbol(self, symbol: str) -> bool:
        """Move past a symbol if it comes next; returns whether it did."""
        is_next = self.peek().is_symbol(symbol)
        self._index += is_next
        return is_next

    def require_symbol(self, symbol: str, problem: str, *, hint: str = "") -> None:
        """Move past a symbol; `problem` is the error if it does not come next."""
        if not self.skip_symbol(symbol):
            raise self.problem(problem, self.peek(), hint=hint)

    def skip_words(self, *words: str) -> bool:
        """Move past keywords if they come next in this order; returns whether they did."""
        is_next = all(self.peek(ahead).is_word(word) for ahead, word in enumerate(words))
        self._index += len(words) * is_next
        return is_next

    def take_name(self, expected: str, *, reserved: Sequence[str] = ()) -> Token:
        """Move past a name and return it; `reserved` keywords are names only in quotes."""
        token = self.peek()
        if not token.is_name or token.is_word(*reserved):
            raise self.problem(f"{expected} is missing.", token)
        return self.take(expected)

    def finish(self, *allowed: str) -> None:
        """Check that the statement ends here.

        Args:
            allowed: Keywords of its clauses in their order, for the hint.

        Raises:
            StatementError: There are more tokens.
        """
        token = self.peek()
        if token.kind is TokenKind.END:
            return
        shown = self.source(token)
        near = did_you_mean(token.text, allowed) if token.kind is TokenKind.WORD else ""
        order = f" The clauses are {', '.join(allowed)}, in this order." if allowed else ""
        problem = f"{shown} is not expected here."
        raise self.problem(problem, token, hint=f"{near}{order} Statements are separated by ; .")

    def source(self, token: Token) -> str:
        """The text of a token as written, shortened to 40 characters."""
        written = self.text[token.start : token.end]
        return written if len(written) <= 40 else f"{written[:40]}..."

    def position(self, token: Token) -> SourcePosition:
        """Where a token begins."""
        return SourcePosition(self.text, token.start)

    def problem(self, problem: str, token: Token, *, hint: str = "") -> StatementError:
        """An error at a token."""
        return StatementError(problem, self.position(token), hint=hint)


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
        position = SourcePosition(text, _unclosed_offset(text))
        hint = "Close it. A quote within text is written twice."
        raise StatementError("A quote or a comment is not closed.", position, hint=hint) from e
    return [Token(*_kind_and_text(text, token), token.start, token.end + 1) for token in tokens]


@functools.cache
def _tokenizer(dialect: str) -> type[Tokenizer]:
    """A dialect's tokenizer, changed: [ begins a list, and SHOW is an ordinary word."""
    base = Dialect.get_or_raise(dialect).tokenizer_class
    names = [quotes for quotes in base.IDENTIFIERS if quotes[0] != "["]
    return type("_Tokenizer", (base,), {"COMMANDS": set(), "IDENTIFIERS": names})


def _kind_and_text(text: str, token: SqlglotToken) -> tuple[TokenKind, str]:
    if token.token_type in _QUOTED_KINDS:
        return _QUOTED_KINDS[token.token_type], token.text
    written = text[token.start : token.end + 1]
    if token.token_type is TokenType.NUMBER:
        return TokenKind.NUMBER, written
    return TokenKind.WORD if _WORD.fullmatch(written) else TokenKind.SYMBOL, written


def _unclosed_offset(text: str) -> int:
    """The offset of the first quote or comment that is not closed."""
    offset = 0
    while opening := _OPENING.search(text, offset):
        end = text.find(_ENDS.get(opening[0], opening[0]), opening.end())
        if end < 0:
            return len(text) if opening[0] == "--" else opening.start()
        offset = end + len(_ENDS.get(opening[0], opening[0]))
    return max(0, len(text) - 1)
