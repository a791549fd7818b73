from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Session(_message.Message):
    __slots__ = ("token", "db_conn_str", "exit_on_submit", "user_id")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DB_CONN_STR_FIELD_NUMBER: _ClassVar[int]
    EXIT_ON_SUBMIT_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    token: str
    db_conn_str: str
    exit_on_submit: bool
    user_id: str
    def __init__(self, token: _Optional[str] = ..., db_conn_str: _Optional[str] = ..., exit_on_submit: bool = ..., user_id: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("sql", "session")
    SQL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    sql: str
    session: Session
    def __init__(self, sql: _Optional[str] = ..., session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("head", "row", "message", "eoe", "job")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EOE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    head: Head
    row: Row
    message: Message
    eoe: EndOfExecution
    job: Job
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., row: _Optional[_Union[Row, _Mapping]] = ..., message: _Optional[_Union[Message, _Mapping]] = ..., eoe: _Optional[_Union[EndOfExecution, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("column_names",)
    COLUMN_NAMES_FIELD_NUMBER: _ClassVar[int]
    column_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, column_names: _Optional[_Iterable[str]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("data",)
    class Null(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, data: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class EndOfExecution(_message.Message):
    __slots__ = ("sql", "spent_time_seconds")
    SQL_FIELD_NUMBER: _ClassVar[int]
    SPENT_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sql: str
    spent_time_seconds: int
    def __init__(self, sql: _Optional[str] = ..., spent_time_seconds: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "namespace")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    id: str
    namespace: str
    def __init__(self, id: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...
