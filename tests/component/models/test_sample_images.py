"""The pictures to try the zoo on."""

import subprocess
import sys
from pathlib import Path

MAKER = Path(__file__).parents[3] / "model_zoo" / "sample_images.py"


def test_pictures_appear_and_what_is_beside_them_stays(tmp_path):
    mine = tmp_path / "images.partial" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    command = [sys.executable, str(MAKER), "patches", str(tmp_path / "images")]
    subprocess.run(command, check=True, timeout=120)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "images.partial"]
    assert mine.read_text() == "mine"
    assert len(list((tmp_path / "images").glob("t*/[01]/*.png"))) > 100
