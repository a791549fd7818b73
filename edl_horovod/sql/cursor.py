"""A cursor on the tokens of one statement, which is read from left to right."""

from collections.abc import Sequence

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.tokens import Token, TokenKind

__all__ = ["Cursor"]


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
        self._tokens = tokens
        self._index = index

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or a later one; None after the last one."""
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def take(self, expected: str) -> Token:
        """Move past the next token and return it.

        Args:
            expected: What is expected; the error begins with it if there is no token left.
        """
        token = self.peek()
        if token is None:
            raise StatementError(f"{expected} is missing at the end.", self._end())
        self._index += 1
        return token

    def skip_symbol(self, symbol: str) -> bool:
        """Move past a symbol if it comes next; returns whether it did."""
        token = self.peek()
        if token is None or not token.is_symbol(symbol):
            return False
        self._index += 1
        return True

    def skip_words(self, *words: str) -> bool:
        """Move past keywords if they come next in this order; returns whether they did."""
        following = [self.peek(ahead) for ahead in range(len(words))]
        for token, word in zip(following, words, strict=True):
            if token is None or not token.is_word(word):
                return False
        self._index += len(words)
        return True

    def take_name(self, expected: str, *, reserved: Sequence[str] = ()) -> Token:
        """Move past a name and return it; `reserved` keywords are names only in quotes."""
        token = self.peek()
        if token is None or not token.is_name or token.is_word(*reserved):
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
        if token is None:
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

    def position(self, token: Token | None) -> SourcePosition:
        """Where a token begins; without a token, the end of the statement."""
        return self._end() if token is None else SourcePosition(self.text, token.start)

    def problem(self, problem: str, token: Token | None, *, hint: str = "") -> StatementError:
        """An error at a token; without a token, at the end of the statement."""
        return StatementError(problem, self.position(token), hint=hint)

    def _end(self) -> SourcePosition:
        return SourcePosition(self.text, self._tokens[-1].end)
