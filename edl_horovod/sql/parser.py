"""A program in SQL with our clauses, read into statements."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.clauses import (
    read_attributes,
    read_columns,
    read_model,
    read_name,
    refuse_image,
)
from edl_horovod.sql.cursor import Cursor
from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.programs import VERBS, find_verb, split
from edl_horovod.sql.spellings import EXPLAINERS, LABELS
from edl_horovod.sql.statements import (
    AlterModel,
    Attribute,
    DescribeModel,
    DropModel,
    Evaluate,
    EvaluateColumns,
    Explain,
    Kill,
    ModelName,
    Name,
    Predict,
    ShowJobs,
    ShowLog,
    ShowModels,
    ShowTrain,
    ShowTrials,
    Standard,
    Statement,
    Train,
)
from edl_horovod.sql.tokens import Kind, Token, tokens_of

__all__ = ["parse"]

_REFUSED = {
    "RUN": ("runs any program, which statements never do.", "Run the program by itself."),
    "MAXIMIZE": ("is not supported: this trains models.", "Use a solver of linear programs."),
    "MINIMIZE": ("is not supported: this trains models.", "Use a solver of linear programs."),
}
_SHOWN = ("MODELS", "TRAIN", "LOG", "TRIALS", "JOBS")
_OURS = (*(f"SHOW {what}" for what in _SHOWN), "DESCRIBE MODEL")


def parse(text: str, dialect: str = "sqlite") -> tuple[Statement, ...]:
    """The statements of a program.

    Args:
        text: Statements with semicolons between them.
        dialect: sqlglot's name of the database's SQL: `sqlite`, `postgres`, `mysql`, `duckdb`.

    Raises:
        StatementError: One cannot be understood.
    """
    tokens = tokens_of(text, dialect)
    return tuple(_statement(text, each, dialect) for each in split(text, tokens))


def _statement(text: str, tokens: Sequence[Token], dialect: str) -> Statement:
    at = find_verb(tokens)
    if at is not None:
        return _extended(text, tokens, at)
    cursor = Cursor(text, tokens)
    if own := _own(cursor):
        return own
    if tokens[0].is_word("TRAIN", "PREDICT", "EVALUATE", "MAXIMIZE", "MINIMIZE"):
        raise cursor.problem(
            f"{tokens[0].text} has no SELECT before it.",
            tokens[0],
            hint=f"Write SELECT ... FROM ... {tokens[0].text.upper()} ... .",
        )
    if dialect == "sqlite" and tokens[0].is_word("SHOW", "DESCRIBE"):
        written = " ".join(token.text for token in tokens[:2])
        what = f"There is no statement {written}: sqlite has no {tokens[0].text} of its own."
        hint = f"{did_you_mean(written, _OURS)} There are {', '.join(_OURS)}."
        raise cursor.problem(what, tokens[0], hint=hint)
    standard = text[tokens[0].start : tokens[-1].end]
    return Standard(text=standard, position=cursor.position(tokens[0]))


def _own(cursor: Cursor) -> Statement | None:
    """A statement of ours that has no SELECT; None for another."""
    first = cursor.peek()
    position = cursor.position(first)
    found: Statement | None = None
    if cursor.skip_words("SHOW", "TRAIN"):
        found = ShowTrain(model=read_model(cursor), position=position)
    elif cursor.skip_words("SHOW", "LOG"):
        found = ShowLog(model=read_model(cursor), position=position)
    elif cursor.skip_words("SHOW", "TRIALS"):
        found = ShowTrials(model=read_model(cursor), position=position)
    elif cursor.skip_words("SHOW", "MODELS"):
        found = ShowModels(position=position)
    elif cursor.skip_words("SHOW", "JOBS"):
        found = ShowJobs(position=position)
    elif cursor.skip_words("DESCRIBE", "MODEL") or cursor.skip_words("DESC", "MODEL"):
        found = DescribeModel(model=read_model(cursor), position=position)
    elif cursor.skip_words("ALTER", "MODEL"):
        found = _alter(cursor, position)
    elif cursor.skip_words("DROP", "MODEL"):
        if_exists = cursor.skip_words("IF", "EXISTS")
        found = DropModel(model=read_model(cursor), if_exists=if_exists, position=position)
    elif cursor.skip_words("KILL"):
        found = Kill(job=_job(cursor), position=position)
    if found is not None:
        cursor.finish()
    return found


def _alter(cursor: Cursor, position: SourcePosition) -> AlterModel:
    named = read_model(cursor)
    hint = f"Write ALTER MODEL {named.name}@1 SET LIVE: SHOW MODELS lists the versions."
    if named.version is None:
        raise StatementError("The version is missing.", named.position, hint=hint)
    if not cursor.skip_words("SET", "LIVE"):
        raise cursor.problem("SET LIVE is missing.", cursor.peek(), hint=hint)
    return AlterModel(model=named, position=position)


def _job(cursor: Cursor) -> int:
    token = cursor.take("The number of a job")
    if token.kind is not Kind.NUMBER or not token.text.isdecimal():
        what = f"{cursor.source(token)} is not the number of a job."
        raise cursor.problem(what, token, hint="SHOW JOBS lists them.")
    return int(token.text[:18])


def _extended(text: str, tokens: Sequence[Token], at: int) -> Statement:
    cursor = Cursor(text, tokens, at)
    verb = cursor.take("A verb")
    if verb.is_word("TO"):
        verb = cursor.take("A verb")
    word = verb.text.upper()
    if word in _REFUSED:
        what, hint = _REFUSED[word]
        raise cursor.problem(f"{word} {what}", verb, hint=hint)
    common = {
        "text": text[tokens[0].start : tokens[-1].end],
        "select": text[tokens[0].start : tokens[at - 1].end],
        "position": cursor.position(verb),
    }
    read: dict[str, Callable[[Cursor, dict[str, Any]], Statement]] = {
        "TRAIN": _train,
        "PREDICT": _predict,
        "EVALUATE": _evaluate,
        "EXPLAIN": _explain,
    }
    assert set(read) | set(_REFUSED) == set(VERBS)
    return read[word](cursor, common)


def _train(cursor: Cursor, common: dict[str, Any]) -> Train:
    model = read_name(cursor, "A model of the zoo, as regressor.DNN,")
    hint = "Write its name alone; the image of pods is the setting image of the command."
    refuse_image(cursor, "A model", hint)
    attributes = read_attributes(cursor, may_vary=True)
    columns = read_columns(cursor)
    label = read_name(cursor, "A column") if cursor.skip_words("LABEL") else None
    columns = columns or read_columns(cursor)
    using = read_model(cursor) if cursor.skip_words("USING") else None
    into = cursor.peek()
    if not cursor.skip_words("INTO"):
        _no_clause(cursor, "INTO", "Write INTO and a name for the trained model.")
    or_replace = cursor.skip_words("OR", "REPLACE")
    if_not_exists = cursor.skip_words("IF", "NOT", "EXISTS")
    if or_replace and if_not_exists:
        what = "OR REPLACE and IF NOT EXISTS contradict each other."
        raise cursor.problem(what, into, hint="Leave one of them out.")
    named = read_model(cursor)
    if named.version is not None:
        hint = f"Write INTO {named.name}: it gets the next version."
        raise StatementError("A training does not choose its version.", named.position, hint=hint)
    cursor.finish("WITH", "COLUMN", "LABEL", "USING", "INTO")
    return Train(
        **common,
        model=model,
        attributes=attributes,
        columns=columns,
        label=label,
        using=using,
        into=named,
        or_replace=or_replace,
        if_not_exists=if_not_exists,
    )


def _predict(cursor: Cursor, common: dict[str, Any]) -> Predict:
    following = cursor.peek()
    target = None
    if following is None or not following.is_word("WITH", "USING"):
        target = read_name(cursor, "The table and the column of the predictions")
    attributes = read_attributes(cursor)
    if not cursor.skip_words("USING"):
        _no_clause(cursor, "USING", "Write USING and the name of a trained model.")
    using = read_model(cursor)
    cursor.finish("WITH", "USING")
    return Predict(**common, target=target, attributes=attributes, using=using)


def _evaluate(cursor: Cursor, common: dict[str, Any]) -> Evaluate | EvaluateColumns:
    if not _begins_clause(cursor):
        model, attributes, label = _measured(cursor)
        into = _result_table(cursor)
        cursor.finish("WITH", "LABEL", "INTO")
        return Evaluate(**common, model=model, attributes=attributes, label=label, into=into)
    attributes = read_attributes(cursor)
    hint = "Without a model, write EVALUATE LABEL column USING column."
    if not cursor.skip_words("LABEL"):
        _no_clause(cursor, "LABEL", hint)
    label = read_name(cursor, "A column")
    if not cursor.skip_words("USING"):
        _no_clause(cursor, "USING", hint)
    predicted = read_name(cursor, "The column of the predictions")
    into = _result_table(cursor)
    cursor.finish("WITH", "LABEL", "USING", "INTO")
    return EvaluateColumns(
        **common, attributes=attributes, label=label, predicted=predicted, into=into
    )


def _begins_clause(cursor: Cursor) -> bool:
    """Whether a clause stands where the name of a model may: a model, too, may be called label."""
    first, following = cursor.peek(), cursor.peek(1)
    if first is None or not first.is_word("WITH", "LABEL", "USING"):
        return False
    is_label = first.is_word("LABEL")
    return not is_label or (
        following is not None
        and (following.is_name or following.kind is Kind.TEXT)
        and not following.is_word("WITH", "LABEL", "INTO")
    )


def _explain(cursor: Cursor, common: dict[str, Any]) -> Explain:
    model, attributes, label = _measured(cursor)
    explainer = read_name(cursor, "An explainer") if cursor.skip_words("USING") else None
    if explainer is not None and str(explainer) not in EXPLAINERS:
        what = f"There is no explainer {explainer}."
        hint = "Leave USING out: columns are shuffled, which any model can be explained by."
        raise StatementError(what, explainer.position, hint=hint)
    into = _result_table(cursor)
    cursor.finish("WITH", "LABEL", "USING", "INTO")
    return Explain(
        **common,
        model=model,
        attributes=attributes,
        label=label,
        explainer=explainer,
        into=into,
    )


def _measured(cursor: Cursor) -> tuple[ModelName, tuple[Attribute, ...], Name | None]:
    """What EVALUATE and EXPLAIN begin with: a trained model, and the label of the rows."""
    model = read_model(cursor)
    attributes = read_attributes(cursor)
    label = read_name(cursor, "A column") if cursor.skip_words("LABEL") else None
    for attribute in attributes:
        if attribute.name in LABELS:
            if label is not None:
                what = f"{attribute.name} says what LABEL says."
                raise StatementError(what, attribute.position, hint="Leave one out.")
            parts = (str(attribute.value),)
            label = Name(parts=parts, folded=parts, position=attribute.position)
    return model, tuple(each for each in attributes if each.name not in LABELS), label


def _result_table(cursor: Cursor) -> Name | None:
    return read_name(cursor, "A table") if cursor.skip_words("INTO") else None


def _no_clause(cursor: Cursor, clause: str, hint: str) -> NoReturn:
    """Say that a clause is missing, or what stands in its place."""
    token = cursor.peek()
    if token is None:
        raise cursor.problem(f"{clause} is missing.", None, hint=hint)
    near = did_you_mean(token.text, ("WITH", "COLUMN", "FOR", "LABEL", "USING", "INTO"))
    shown = cursor.source(token)
    what = f"{shown} stands where {clause}, or a clause before it, is expected."
    if token.is_word("WITH", "COLUMN", "LABEL", "USING"):
        what = f"{shown} cannot stand here: each clause comes once (COLUMN may be repeated)."
        near = " Their order is WITH, COLUMN, LABEL, USING, INTO."
    raise cursor.problem(what, token, hint=f"{near} {hint}")
