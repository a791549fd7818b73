"""What the rest of the package knows of PyTorch without importing it."""

from edl_horovod.config.frameworks import FrameworkEntry, ModelKind

ENTRY = FrameworkEntry(
    module="edl_horovod.frameworks.torch.ring",
    packages=("torch", "safetensors"),
    extra="torch",
    imports=("lightning", "pytorch_lightning", "torch", "torchaudio", "torchvision"),
    # Of the first optimizer. It takes longer than all else that a rank does before its first step.
    training_imports=("torch._dynamo",),
    horovod="horovod.torch",
    file_models="edl_horovod.frameworks.torch.file_models",
    model_kinds={
        "PytorchFLModel": ModelKind(
            framework="torch",
            module="pytorch_fl_model",
            keys=("optimizer", "loss_criterion"),
            options={"optimizer": "optimizer", "loss_criterion": "loss"},
        )
    },
)
