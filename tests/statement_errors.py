"""What an error of a statement says in words of its own."""

from edl_horovod.sql.statements import StatementError


def reason(error: StatementError) -> str:
    """The problem and the hint, without the line of the statement, which holds its words anyway."""
    return f"{error.problem} {error.hint.removesuffix(error.position.excerpt)}".strip()
