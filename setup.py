"""What pyproject.toml cannot say: the package brings folders that stand beside it here."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


class BuildWithShipped(build_py):
    """Put what stands beside the package into it; an editable install reads that in place."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        for name in () if self.editable_mode else ("conf", "model_zoo", "starter"):
            target = Path(self.build_lib) / "edl_horovod" / name
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HERE / name, target, dirs_exist_ok=True, ignore=ignored)


setup(cmdclass={"build_py": BuildWithShipped})
