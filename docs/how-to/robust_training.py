"""Attack trained models by the Adversarial Robustness Toolbox, and print a row of a table for each.

Its attacks share no code with those that the models were trained with.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import PIL.Image
from art.attacks import evasion
from art.estimators import classification

NUM_CLASSES, SHAPE = 10, (28, 28, 1)


def main() -> None:
    """Attack each model on all pictures of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("images", type=Path, help="a folder of pictures, in folders by class")
    parser.add_argument("models", type=Path, nargs="+", help="what edl train wrote")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "model_zoo"))
    paths = sorted(args.images.glob("*/*.png"))
    images = np.stack([np.asarray(PIL.Image.open(path), np.float32) for path in paths])
    images = images[..., None] / 255
    labels = np.array([int(path.parent.name) for path in paths])
    print(f"{len(labels)} pictures", flush=True)
    for folder in args.models:
        classifier = _keras(folder) if (folder / "model.keras").exists() else _torch(folder)
        print(f"{folder.name} | clean {_accuracy(classifier, images, labels):.1%}", end="")
        for name, attack in _attacks(classifier).items():
            np.random.seed(0)  # The toolbox draws from this generator.
            share = _accuracy(classifier, attack.generate(images, labels), labels)
            print(f" | {name} {share:.1%}", end="", flush=True)
        print()


def _attacks(classifier):
    """The attacks by their names; the strengths are the largest change of a pixel."""
    pgd = {"max_iter": 20, "num_random_init": 2, "batch_size": 128, "verbose": False}
    square = {"max_iter": 200, "nb_restarts": 1, "batch_size": 128, "verbose": False}
    return {
        "FGSM 0.1": evasion.FastGradientMethod(classifier, eps=0.1, batch_size=512),
        "PGD 0.1": evasion.ProjectedGradientDescent(classifier, eps=0.1, eps_step=0.01, **pgd),
        "PGD 0.2": evasion.ProjectedGradientDescent(classifier, eps=0.2, eps_step=0.02, **pgd),
        "Square 0.1": evasion.SquareAttack(classifier, eps=0.1, **square),
    }


def _accuracy(classifier, images, labels):
    return float((classifier.predict(images).argmax(1) == labels).mean())


def _torch(folder):
    import torch
    from safetensors.torch import load_model

    class OfImages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = import_module("mnist_torch.mnist_torch").MnistModel().eval()

        def forward(self, image):
            return self.model({"image": image[..., 0]})

    module = OfImages()
    load_model(module.model, folder / "model.safetensors")
    return classification.PyTorchClassifier(
        module.eval(),
        torch.nn.CrossEntropyLoss(),
        SHAPE,
        NUM_CLASSES,
        channels_first=False,
        clip_values=(0, 1),
    )


def _keras(folder):
    import keras

    model = keras.saving.load_model(folder / "model.keras")
    return classification.TensorFlowV2Classifier(
        lambda image, training: model({"image": image[..., 0]}, training=training),
        NUM_CLASSES,
        SHAPE,
        loss_object=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        clip_values=(0, 1),
    )


if __name__ == "__main__":
    main()
