"""A place among the tokens of one statement, for those who read it from left to right."""

from collections.abc import Sequence

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.tokens import Kind, Token

__all__ = ["Cursor"]


class Cursor:
    """Reads the tokens of a statement one after the other."""

    def __init__(self, text: str, tokens: Sequence[Token], at: int = 0) -> None:
        """Begin.

        Args:
            text: The whole program, for places.
            tokens: Of one statement, without its semicolon; at least one.
            at: The first token to read.
        """
        self.text = text
        self._tokens = tokens
        self._at = at

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or a later one; None behind the last one."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def take(self, what: str) -> Token:
        """The next token; `what` begins the error where there is none."""
        token = self.peek()
        if token is None:
            raise StatementError(f"{what} is missing at the end.", self._end())
        self._at += 1
        return token

    def skip_symbol(self, symbol: str) -> bool:
        """Move behind a symbol if it comes next."""
        token = self.peek()
        if token is None or not token.is_symbol(symbol):
            return False
        self._at += 1
        return True

    def skip_words(self, *words: str) -> bool:
        """Move behind some keywords if they come next, in this order."""
        following = [self.peek(ahead) for ahead in range(len(words))]
        for token, word in zip(following, words, strict=True):
            if token is None or not token.is_word(word):
                return False
        self._at += len(words)
        return True

    def take_name(self, what: str, *, reserved: Sequence[str] = ()) -> Token:
        """A name; keywords in `reserved` are none without quotes."""
        token = self.peek()
        if token is None or not token.is_name or token.is_word(*reserved):
            raise self.problem(f"{what} is missing.", token)
        return self.take(what)

    def finish(self, *allowed: str) -> None:
        """See that nothing follows.

        Args:
            allowed: Keywords that might have been meant.

        Raises:
            StatementError: Something follows.
        """
        token = self.peek()
        if token is None:
            return
        shown = self.source(token)
        near = did_you_mean(token.text, allowed) if token.kind is Kind.WORD else ""
        ours = f" The clauses are {', '.join(allowed)}, in this order." if allowed else ""
        what = f"{shown} is not expected here."
        raise self.problem(what, token, hint=f"{near}{ours} Statements are separated by ; .")

    def source(self, token: Token) -> str:
        """A token as it was written, shortened."""
        written = self.text[token.start : token.end]
        return written if len(written) <= 40 else f"{written[:40]}..."

    def position(self, token: Token | None) -> SourcePosition:
        """Where a token begins; None for the end."""
        return self._end() if token is None else SourcePosition(self.text, token.start)

    def problem(self, what: str, token: Token | None, *, hint: str = "") -> StatementError:
        """An error at a token; None for the end."""
        return StatementError(what, self.position(token), hint=hint)

    def _end(self) -> SourcePosition:
        return SourcePosition(self.text, self._tokens[-1].end)
