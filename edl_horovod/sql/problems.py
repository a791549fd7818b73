"""The error of a statement: what is wrong, its line with a caret below it, and a hint."""

from dataclasses import dataclass, field

from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets

__all__ = ["SourcePosition", "StatementError"]

_MOST_SHOWN = 100
"""Characters of a line that an error shows."""


@dataclass(frozen=True)
class SourcePosition:
    """A position in the text of a program."""

    text: str = field(repr=False)
    offset: int
    """Number of characters before it."""

    @property
    def line(self) -> int:
        """The line, counted from 1."""
        return self.text.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int:
        """The character within the line, counted from 1."""
        return self.offset - self._line_start + 1

    @property
    def excerpt(self) -> str:
        """The line with a caret below the position; only the line where it holds secrets."""
        end = self.text.find("\n", self.offset)
        line = self.text[self._line_start : end if end >= 0 else None].rstrip("\r")
        if without_secrets(line) != line:
            return f"  {without_secrets(line)}"
        skipped = max(0, self.column - 1 - _MOST_SHOWN // 2)
        shown = line[skipped : skipped + _MOST_SHOWN]
        # A tab stays one, so that the caret stands below its character.
        before = ["\t" if char == "\t" else " " for char in shown[: self.column - 1 - skipped]]
        return f"  {_printable(shown)}\n  {''.join(before)}^"

    @property
    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.offset) + 1


class StatementError(ConfigError):
    """A statement that cannot be understood or carried out."""

    def __init__(self, problem: str, position: SourcePosition, *, hint: str = "") -> None:
        """Add the line of the program to the hint.

        Args:
            problem: What is wrong, as a sentence.
            position: Where the wrong part begins.
            hint: What to write instead, in sentences.
        """
        self.position = position
        super().__init__(
            problem,
            received=f"line {position.line}, column {position.column}",
            hint=f"{hint.strip()}\n{position.excerpt}",
        )


def _printable(text: str) -> str:
    """The text with a question mark for each character that could control a terminal."""
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in text)
