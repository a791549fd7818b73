"""Convert the result of a statement to messages of the protocol."""

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import (
    BoolValue,
    BytesValue,
    DoubleValue,
    Int64Value,
    StringValue,
    UInt64Value,
)

from edl_horovod.proto.sqlflow_pb2 import EndOfExecution, Head, Message, Response, Row
from edl_horovod.sql.results import Result

__all__ = ["end_of_statement", "message", "responses_of"]


def responses_of(result: Result) -> Iterator[Response]:
    """The head and rows of a result, or its message; clients expect rows after a head."""
    if result.columns:
        yield Response(head=Head(column_names=result.columns))
        for row in result.rows:
            yield Response(row=_row(row))
        if result.has_more_rows:
            yield message(f"Only the first {len(result.rows):,} rows are returned; use LIMIT.")
    if result.message:
        yield message(result.message)
    if result.metrics and not result.columns:
        yield message(", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))


def message(text: str) -> Response:
    """A message to the user."""
    return Response(message=Message(message=text))


def end_of_statement(sql: str, seconds: float) -> Response:
    """The end of a statement, with its duration."""
    return Response(eoe=EndOfExecution(sql=sql, spent_time_seconds=int(seconds)))


def _row(values: Sequence[Any]) -> Row:
    row = Row()
    for value in values:
        row.data.append(_packed(value))
    return row


def _packed(value: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(_wrapped(value))
    return packed


def _wrapped(value: Any) -> Any:
    match value:
        case None:
            return Row.Null()
        case bool():
            return BoolValue(value=value)
        case int() if -(2**63) <= value < 2**63:
            return Int64Value(value=value)
        case int() if 0 <= value < 2**64:
            return UInt64Value(value=value)
        case float():
            return DoubleValue(value=value)
        case bytes() | bytearray() | memoryview():
            return BytesValue(value=bytes(value))
        case datetime.datetime():
            return _timestamp(value)
        case datetime.date():
            return _timestamp(datetime.datetime(value.year, value.month, value.day))
    # As text decimals keep their digits; times of day and intervals have no wrapper type.
    return StringValue(value=str(value))


def _timestamp(value: datetime.datetime) -> Timestamp:
    """A timestamp; without a time zone it is taken as UTC, as in trainings."""
    moment = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value
    since_epoch = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return Timestamp(
        seconds=since_epoch.days * 86_400 + since_epoch.seconds,
        nanos=since_epoch.microseconds * 1_000,
    )
