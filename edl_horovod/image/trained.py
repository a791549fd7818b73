"""The image that a trained model names."""

from pathlib import Path

from google.protobuf.message import DecodeError

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.image import reference
from edl_horovod.image.reference import Reference
from edl_horovod.proto.trained_model_pb2 import TrainedModel

__all__ = ["image_of"]


def image_of(trained_model: Path) -> Reference | None:
    """The image that a model was trained in; None where it was trained without one.

    Raises:
        ConfigError: There is no trained model, as seen from here.
        DataError: It is damaged.
    """
    file = trained_model / "trained_model.pb"
    try:
        named = TrainedModel.FromString(file.read_bytes()).docker_commit_id
        return reference.parse(named, "docker_commit_id") if named else None
    except OSError as e:
        raise ConfigError(
            f"The trained model cannot be read here: {e.strerror}. Received: trained_model="
            f"{str(trained_model)!r}. Where only the pods see it, give the image: image=... ."
        ) from e
    except (DecodeError, ConfigError) as e:
        raise DataError(
            f"The trained model {trained_model} is damaged: trained_model.pb: {e} Copy it again,"
            " or give the image: image=... ."
        ) from e
