"""Parses a program in SQL with the added clauses into statements."""

from collections.abc import Iterator, Sequence
from typing import Any

from edl_horovod.errors import did_you_mean
from edl_horovod.sql import statements
from edl_horovod.sql.clauses import (
    read_attributes,
    read_columns,
    read_model,
    read_name,
    refuse_image,
)
from edl_horovod.sql.sqlflow import EXPLAINERS, LABEL_ATTRIBUTES
from edl_horovod.sql.statements import (
    Attribute,
    ModelName,
    Name,
    SourcePosition,
    Statement,
    StatementError,
)
from edl_horovod.sql.tokens import Cursor, Token, TokenKind, tokens_of

_REFUSED_VERBS = {
    "RUN": ("is not supported: statements never run other programs.", "Run the program by itself."),
    "MAXIMIZE": ("is not supported: this trains models.", "Use a solver of linear programs."),
    "MINIMIZE": ("is not supported: this trains models.", "Use a solver of linear programs."),
}
_SHOW_TOPICS = ("MODELS", "TRAIN", "LOG", "TRIALS", "JOBS")
_ADDED_STATEMENTS = (*(f"SHOW {topic}" for topic in _SHOW_TOPICS), "DESCRIBE MODEL")
_MODEL_STATEMENTS: dict[str, type[statements.ModelStatement]] = {
    "SHOW TRAIN": statements.ShowTrain,
    "SHOW LOG": statements.ShowLog,
    "SHOW TRIALS": statements.ShowTrials,
    "DESCRIBE MODEL": statements.DescribeModel,
    "DESC MODEL": statements.DescribeModel,
}
"""Statements of some keywords and the name of a model."""
_VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN", *_REFUSED_VERBS)
"""Keywords that begin the added clauses after a SELECT, with or without TO before them."""
_FIRST_WORDS_OF_SELECT = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_OPENS, _CLOSES = ("(", "[", "{"), (")", "]", "}")
_NEVER_BEFORE = (
    *("SELECT", "DISTINCT", "ALL", "FROM", "JOIN", "AS", "WHERE", "AND", "OR", "NOT", "ON", "BY"),
    *("HAVING", "IN", "LIKE", "BETWEEN", "IS", "LIMIT", "OFFSET", "CASE", "WHEN", "THEN", "ELSE"),
    *("UNION", "EXCEPT", "INTERSECT"),
)
"""Keywords that a column or a table follows, so that TRAIN after them is a name."""
_NEVER_A_MODEL = (
    *_NEVER_BEFORE,
    *("LEFT", "RIGHT", "INNER", "CROSS", "FULL", "NATURAL", "OUTER", "GROUP", "ORDER", "WINDOW"),
    *("FETCH", "FOR", "SET", "ASC", "DESC", "END", "TO", "WITH", "COLUMN", "LABEL", "USING"),
    "INTO",
)
"""Keywords that may follow a column or a table called TRAIN, and so do not name a model."""
_OBJECTS_WITH_BODY = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT")
_OBJECTS_WITHOUT_BODY = ("TABLE", "VIEW", "INDEX")
_MOST_TOKENS_TO_KIND = 12
"""Tokens of a CREATE up to the kind of its object, as in CREATE DEFINER = a@b TRIGGER."""
_UNCOUNTED_BLOCKS = ("IF", "LOOP", "WHILE", "REPEAT", "FOR")


def parse(text: str, dialect: str = "sqlite") -> tuple[Statement, ...]:
    """Parse the statements of a program.

    Args:
        text: Statements with semicolons between them.
        dialect: sqlglot's name of the database's SQL: `sqlite`, `postgres`, `mysql`, `duckdb`.

    Raises:
        StatementError: A statement cannot be understood.
    """
    tokens = tokens_of(text, dialect)
    return tuple(
        _statement(text, statement, dialect) for statement in _split_statements(text, tokens)
    )


def is_complete(text: str, dialect: str) -> bool:
    """Whether a program ends with the semicolon of a statement.

    Semicolons in quotes, comments, brackets and bodies of triggers end no statement.

    Args:
        text: The beginning of a program.
        dialect: As for `parse`.
    """
    try:
        tokens = tokens_of(text, dialect)
    except StatementError:  # A quote or a comment is not closed yet.
        return False
    if not tokens or not tokens[-1].is_symbol(";"):
        return False
    try:
        parts = list(_split_statements(text, tokens))
    except StatementError:
        # More lines may close a bracket; any other error is for `parse` to report.
        return sum(token.is_symbol(*_OPENS) - token.is_symbol(*_CLOSES) for token in tokens) <= 0
    # A semicolon that belongs to a statement is one of its body.
    return not parts or not parts[-1][-1].is_symbol(";")


def _split_statements(text: str, tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each statement, without the semicolons between them.

    Raises:
        StatementError: A bracket has no counterpart.
    """
    statement: list[Token] = []
    opened: list[Token] = []
    blocks = 0
    for index, token in enumerate(tokens):
        if token.is_symbol(*_OPENS):
            opened.append(token)
        elif token.is_symbol(*_CLOSES):
            opening = _OPENS[_CLOSES.index(token.text)]
            if not opened or opened.pop().text != opening:
                problem = f"The {token.text} has no matching {opening} before it."
                raise StatementError(problem, SourcePosition(text, token.start))
        if token.is_symbol(";") and not opened and not blocks:
            if statement:
                yield statement
            statement = []
            continue
        statement.append(token)
        if not opened and _has_body(statement):
            blocks = max(0, blocks + _num_blocks_opened(tokens, index))
    if opened:
        last, position = opened[-1].text, SourcePosition(text, opened[-1].start)
        hint = f"Write {_CLOSES[_OPENS.index(last)]} where it ends."
        raise StatementError(f"The {last} is not closed.", position, hint=hint)
    if statement:
        yield statement


def _has_body(statement: Sequence[Token]) -> bool:
    """Whether a statement creates a trigger or a function, whose body may contain semicolons."""
    if not statement[0].is_word("CREATE"):
        return False
    kinds = (*_OBJECTS_WITH_BODY, *_OBJECTS_WITHOUT_BODY)
    # The first of these words is the kind of the object; a later one may be its name.
    kind = next(
        (token for token in statement[:_MOST_TOKENS_TO_KIND] if token.is_word(*kinds)), None
    )
    return kind is not None and kind.is_word(*_OBJECTS_WITH_BODY)


def _num_blocks_opened(tokens: Sequence[Token], index: int) -> int:
    """1 if a token begins a block of a body, -1 if it ends one."""
    token = tokens[index]
    if token.is_word("END"):
        # What END IF and the like end is not counted, because IF is also a function.
        following = tokens[index + 1 : index + 2]
        return 0 if following and following[0].is_word(*_UNCOUNTED_BLOCKS) else -1
    is_after_end = tokens[index - 1].is_word("END")
    return int(token.is_word("BEGIN") or (token.is_word("CASE") and not is_after_end))


def _find_verb(tokens: Sequence[Token]) -> int | None:
    """The index of the token that begins the added clauses, TO or a verb; None in standard SQL.

    A column, a table or an alias may be called TRAIN, too: it is a verb only if the name of a model
    follows, or a clause that follows a verb, but no keyword of SQL.
    """
    if not tokens[0].is_word(*_FIRST_WORDS_OF_SELECT) and not tokens[0].is_symbol("("):
        return None
    level = 0
    for index, token in enumerate(tokens):
        level += token.is_symbol(*_OPENS) - token.is_symbol(*_CLOSES)
        if index == 0 or level:
            continue
        following = tokens[index + 1 : index + 2]
        if token.is_word("TO") and following and following[0].is_word(*_VERBS):
            return index
        if token.is_word(*_VERBS) and _is_verb(tokens, index):
            return index
    return None


def _is_verb(tokens: Sequence[Token], index: int) -> bool:
    before = tokens[index - 1]
    if before.is_word(*_NEVER_BEFORE) or before.is_symbol(",", ".", "=", "<", ">", "+", "-", "/"):
        return False
    following = tokens[index + 1 : index + 4]
    if not following:
        return False
    if following[0].is_word("WITH"):
        return len(following) == 3 and following[2].is_symbol("=", ".")
    if following[0].is_word("USING"):
        return len(following) > 1 and following[1].is_name
    if following[0].is_word("COLUMN", "LABEL"):
        return True
    return following[0].is_name and not following[0].is_word(*_NEVER_A_MODEL)


def _statement(text: str, tokens: Sequence[Token], dialect: str) -> Statement:
    verb_index = _find_verb(tokens)
    if verb_index is not None:
        return _with_select(text, tokens, verb_index)
    cursor = Cursor(text, tokens)
    if statement := _without_select(cursor):
        return statement
    if tokens[0].is_word("TRAIN", "PREDICT", "EVALUATE", "MAXIMIZE", "MINIMIZE"):
        hint = f"Write SELECT ... FROM ... {tokens[0].text.upper()} ... ."
        raise cursor.problem(f"{tokens[0].text} has no SELECT before it.", tokens[0], hint=hint)
    if dialect == "sqlite" and tokens[0].is_word("SHOW", "DESCRIBE"):
        first, words = tokens[0].text, " ".join(token.text for token in tokens[:2])
        problem = f"There is no statement {words}, and SQLite has no {first} statements."
        suggestion = did_you_mean(words, _ADDED_STATEMENTS)
        hint = f"{suggestion} Allowed: {', '.join(_ADDED_STATEMENTS)}."
        raise cursor.problem(problem, tokens[0], hint=hint)
    standard = text[tokens[0].start : tokens[-1].end]
    return statements.Standard(text=standard, position=cursor.position(tokens[0]))


def _without_select(cursor: Cursor) -> Statement | None:
    """Parse an added statement without a SELECT; None if it is another statement."""
    position = cursor.position(cursor.peek())
    statement: Statement | None = None
    kinds = (kind for words, kind in _MODEL_STATEMENTS.items() if cursor.skip_words(*words.split()))
    if (kind := next(kinds, None)) is not None:
        statement = kind(model=read_model(cursor), position=position)
    elif cursor.skip_words("SHOW", "MODELS"):
        statement = statements.ShowModels(position=position)
    elif cursor.skip_words("SHOW", "JOBS"):
        statement = statements.ShowJobs(position=position)
    elif cursor.skip_words("ALTER", "MODEL"):
        statement = _alter_model(cursor, position)
    elif cursor.skip_words("DROP", "MODEL"):
        if_exists = cursor.skip_words("IF", "EXISTS")
        statement = statements.DropModel(
            model=read_model(cursor), if_exists=if_exists, position=position
        )
    elif cursor.skip_words("KILL"):
        statement = statements.Kill(job=_job_number(cursor), position=position)
    if statement is not None:
        cursor.finish()
    return statement


def _alter_model(cursor: Cursor, position: SourcePosition) -> statements.AlterModel:
    model = read_model(cursor)
    hint = f"Write ALTER MODEL {model.name}@1 SET LIVE: SHOW MODELS lists the versions."
    if model.version is None:
        raise model.error("ALTER MODEL needs a version.", hint)
    if not cursor.skip_words("SET", "LIVE"):
        raise cursor.problem("SET LIVE is missing.", cursor.peek(), hint=hint)
    return statements.AlterModel(model=model, position=position)


def _job_number(cursor: Cursor) -> int:
    token = cursor.take("The number of a job")
    if token.kind is not TokenKind.NUMBER or not token.text.isdecimal():
        problem = f"{cursor.source(token)} is not the number of a job."
        raise cursor.problem(problem, token, hint="SHOW JOBS lists them.")
    return int(token.text[:18])


def _with_select(text: str, tokens: Sequence[Token], verb_index: int) -> Statement:
    cursor = Cursor(text, tokens, verb_index)
    verb = cursor.take("A verb")
    if verb.is_word("TO"):
        verb = cursor.take("A verb")
    word = verb.text.upper()
    if word in _REFUSED_VERBS:
        problem, hint = _REFUSED_VERBS[word]
        raise cursor.problem(f"{word} {problem}", verb, hint=hint)
    common = {
        "text": text[tokens[0].start : tokens[-1].end],
        "select": text[tokens[0].start : tokens[verb_index - 1].end],
        "position": cursor.position(verb),
    }
    match word:
        case "TRAIN":
            return _train(cursor, common)
        case "PREDICT":
            return _predict(cursor, common)
        case "EVALUATE":
            return _evaluate(cursor, common)
    return _explain(cursor, common)


def _train(cursor: Cursor, common: dict[str, Any]) -> statements.Train:
    model = read_name(cursor, "A model of the zoo, as regressor.DNN,")
    hint = "Write its name alone; the image of pods is the setting image of the command."
    refuse_image(cursor, "A model", hint)
    attributes = read_attributes(cursor, may_vary=True)
    columns = read_columns(cursor)
    label = read_name(cursor, "A column") if cursor.skip_words("LABEL") else None
    columns = columns or read_columns(cursor)
    using = read_model(cursor) if cursor.skip_words("USING") else None
    into = cursor.peek()
    _take_clause(cursor, "INTO", "Write INTO and a name for the trained model.")
    or_replace = cursor.skip_words("OR", "REPLACE")
    if_not_exists = cursor.skip_words("IF", "NOT", "EXISTS")
    if or_replace and if_not_exists:
        problem = "OR REPLACE and IF NOT EXISTS exclude each other."
        raise cursor.problem(problem, into, hint="Leave one of them out.")
    target = read_model(cursor)
    if target.version is not None:
        hint = f"Write INTO {target.name}: it gets the next version."
        raise target.error("INTO takes a name without a version.", hint)
    cursor.finish("WITH", "COLUMN", "LABEL", "USING", "INTO")
    return statements.Train(
        **common,
        model=model,
        attributes=attributes,
        columns=columns,
        label=label,
        using=using,
        into=target,
        or_replace=or_replace,
        if_not_exists=if_not_exists,
    )


def _predict(cursor: Cursor, common: dict[str, Any]) -> statements.Predict:
    target = None
    if not cursor.peek().is_word("WITH", "USING"):
        target = read_name(cursor, "The table and the column of the predictions")
    attributes = read_attributes(cursor)
    _take_clause(cursor, "USING", "Write USING and the name of a trained model.")
    using = read_model(cursor)
    cursor.finish("WITH", "USING")
    return statements.Predict(**common, target=target, attributes=attributes, using=using)


def _evaluate(
    cursor: Cursor, common: dict[str, Any]
) -> statements.Evaluate | statements.EvaluateColumns:
    if not _is_clause_next(cursor):
        model, attributes, label = _model_and_label(cursor)
        into = _result_table(cursor)
        cursor.finish("WITH", "LABEL", "INTO")
        return statements.Evaluate(
            **common, model=model, attributes=attributes, label=label, into=into
        )
    attributes = read_attributes(cursor)
    hint = "Without a model, write EVALUATE LABEL column USING column."
    _take_clause(cursor, "LABEL", hint)
    label = read_name(cursor, "A column")
    _take_clause(cursor, "USING", hint)
    predicted = read_name(cursor, "The column of the predictions")
    into = _result_table(cursor)
    cursor.finish("WITH", "LABEL", "USING", "INTO")
    return statements.EvaluateColumns(
        **common, attributes=attributes, label=label, predicted=predicted, into=into
    )


def _is_clause_next(cursor: Cursor) -> bool:
    """Whether a clause comes next, not a model, which may also be called label."""
    following = cursor.peek(1)
    if not cursor.peek().is_word("LABEL"):
        return cursor.peek().is_word("WITH", "USING")
    is_column = following.is_name or following.kind is TokenKind.TEXT
    return is_column and not following.is_word("WITH", "LABEL", "INTO")


def _explain(cursor: Cursor, common: dict[str, Any]) -> statements.Explain:
    model, attributes, label = _model_and_label(cursor)
    explainer = read_name(cursor, "An explainer") if cursor.skip_words("USING") else None
    if explainer is not None and str(explainer) not in EXPLAINERS:
        hint = "Leave USING out: columns are shuffled, which works with any model."
        raise explainer.error(f"There is no explainer {explainer}.", hint)
    into = _result_table(cursor)
    cursor.finish("WITH", "LABEL", "USING", "INTO")
    return statements.Explain(
        **common, model=model, attributes=attributes, label=label, explainer=explainer, into=into
    )


def _model_and_label(cursor: Cursor) -> tuple[ModelName, tuple[Attribute, ...], Name | None]:
    """Read the trained model, the attributes and the label of EVALUATE or EXPLAIN."""
    model = read_model(cursor)
    attributes = read_attributes(cursor)
    label = read_name(cursor, "A column") if cursor.skip_words("LABEL") else None
    for attribute in attributes:
        if attribute.name in LABEL_ATTRIBUTES:
            if label is not None:
                problem = f"{attribute.name} and LABEL both name the label."
                raise attribute.error(problem, "Leave one of them out.")
            parts = (str(attribute.value),)
            label = Name(parts=parts, folded=parts, position=attribute.position)
    others = tuple(attribute for attribute in attributes if attribute.name not in LABEL_ATTRIBUTES)
    return model, others, label


def _result_table(cursor: Cursor) -> Name | None:
    return read_name(cursor, "A table") if cursor.skip_words("INTO") else None


def _take_clause(cursor: Cursor, clause: str, hint: str) -> None:
    """Move past the keyword of a clause, or raise an error about the token found instead."""
    if cursor.skip_words(clause):
        return
    token = cursor.peek()
    if token.kind is TokenKind.END:
        raise cursor.problem(f"{clause} is missing.", token, hint=hint)
    near = did_you_mean(token.text, ("WITH", "COLUMN", "FOR", "LABEL", "USING", "INTO"))
    shown = cursor.source(token)
    problem = f"{clause}, or a clause before it, is expected instead of {shown}."
    if token.is_word("WITH", "COLUMN", "LABEL", "USING"):
        problem = f"{shown} is not allowed here: each clause comes once (COLUMN may be repeated)."
        near = " Their order is WITH, COLUMN, LABEL, USING, INTO."
    raise cursor.problem(problem, token, hint=f"{near} {hint}")
