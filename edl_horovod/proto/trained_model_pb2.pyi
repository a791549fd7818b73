from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dim", "content", "dtype")
    DIM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    dim: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    dtype: str
    def __init__(self, dim: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., dtype: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("version", "param")
    class ParamEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    version: int
    param: _containers.MessageMap[str, Tensor]
    def __init__(self, version: _Optional[int] = ..., param: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class TrainedModel(_message.Message):
    __slots__ = ("docker_commit_id", "model_def", "model_def_params", "params_filename", "input_function", "loss", "optimizer", "format_version", "framework", "framework_version", "zoo_hash", "metrics", "feature_spec", "steps", "more_params_filenames", "param_names", "tensorflow_version")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DOCKER_COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_DEF_FIELD_NUMBER: _ClassVar[int]
    MODEL_DEF_PARAMS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FILENAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    ZOO_HASH_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SPEC_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MORE_PARAMS_FILENAMES_FIELD_NUMBER: _ClassVar[int]
    PARAM_NAMES_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_VERSION_FIELD_NUMBER: _ClassVar[int]
    docker_commit_id: str
    model_def: str
    model_def_params: str
    params_filename: str
    input_function: str
    loss: str
    optimizer: str
    format_version: int
    framework: str
    framework_version: str
    zoo_hash: str
    metrics: _containers.ScalarMap[str, float]
    feature_spec: str
    steps: int
    more_params_filenames: _containers.RepeatedScalarFieldContainer[str]
    param_names: _containers.RepeatedScalarFieldContainer[str]
    tensorflow_version: str
    def __init__(self, docker_commit_id: _Optional[str] = ..., model_def: _Optional[str] = ..., model_def_params: _Optional[str] = ..., params_filename: _Optional[str] = ..., input_function: _Optional[str] = ..., loss: _Optional[str] = ..., optimizer: _Optional[str] = ..., format_version: _Optional[int] = ..., framework: _Optional[str] = ..., framework_version: _Optional[str] = ..., zoo_hash: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., feature_spec: _Optional[str] = ..., steps: _Optional[int] = ..., more_params_filenames: _Optional[_Iterable[str]] = ..., param_names: _Optional[_Iterable[str]] = ..., tensorflow_version: _Optional[str] = ...) -> None: ...
