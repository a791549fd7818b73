"""Steps whose passes are compiled: the same training, few programs, and what it needs."""

import sysconfig
from pathlib import Path

import pytest

from edl_horovod.errors import MissingDependency, UserCodeError
from tests.later import LATER

if LATER:
    import torch

    from edl_horovod.frameworks.torch.running import compiled, require_compiler
    from tests.component.frameworks.torch.test_tasks import assert_same_state

ZOO = Path(__file__).parents[3] / "zoo"
COMPILED = "train.compile=true"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def num_programs(programs, monkeypatch):
    """How many programs have been compiled since."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(programs))
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.mark.timeout(400)
@pytest.mark.long
def test_it_trains_as_without_it_whatever_number_of_examples_a_step_has(run, num_programs):
    # Steps have from 0 to 5 of 24 records, or all; their last ones have fewer.
    # A plain optimizer: Adam would magnify the rounding errors of a bias without a use.
    settings = ("train.epochs=3", "params.kind=SGD", "params.dropout=0.5", "params.batch_norm=True")
    for keep in ("params.keep_every=7", "params.keep_every=1"):
        plain = run("train", *settings, keep, job="plain")
        assert num_programs() == 0 or keep.endswith("1")
        fast = run("train", *settings, keep, COMPILED, job="fast")
        assert fast.losses == pytest.approx(plain.losses, rel=1e-5, abs=1e-5, nan_ok=True)
        assert_same_state(fast, plain, atol=1e-5)
    assert 1 <= num_programs() <= 6


@pytest.mark.long
@pytest.mark.timeout(400)
def test_autocast_accumulation_and_export_go_with_it(run, num_programs, tmp_path):
    settings = ("train.max_steps=4", "train.precision=mixed_bfloat16", "train.accumulate_steps=3")
    plain = run("train", *settings, job="plain")
    fast = run("train", *settings, COMPILED, "train.saved_model=true", job="fast")
    assert num_programs() >= 1
    # Between two layers a program keeps more digits than bfloat16 has.
    assert fast.losses == pytest.approx(plain.losses, rel=2e-2)
    program = torch.export.load(tmp_path / "fast-out" / "model.pt2").module()
    features = {"x": torch.randn(7, 4)}
    ours = fast.step.model.runner.module(features)
    torch.testing.assert_close(program(features), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.timeout(400)
@pytest.mark.long
def test_a_module_that_takes_keywords_and_returns_its_own_outputs_is_compiled(
    run, num_programs, write_zoo
):
    loss = (
        "def loss(outputs, labels):\n    return nn.functional.cross_entropy(outputs.logits, labels)"
    )
    zoo = write_zoo(styles=f"{(ZOO / 'torch_styles.py').read_text()}\n\n{loss}\n")
    settings = (zoo, "model_def=styles.Classifier", "data=dataset:styles.texts")
    plain = run("train", *settings, job="plain")
    fast = run("train", *settings, COMPILED, job="fast")
    assert num_programs() >= 1
    assert fast.losses == pytest.approx(plain.losses, rel=1e-5)


def test_a_machine_without_a_compiler_is_told_before_training(run, tmp_path, monkeypatch):
    get_path = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig,
        "get_path",
        lambda *names: str(tmp_path) if "include" in names else get_path(*names),
    )
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(MissingDependency, match=r"C\+\+ compiler"),
    ):
        run("train", COMPILED)
    assert not (tmp_path / "job-out").exists()
    monkeypatch.undo()
    require_compiler()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_the_compiler_refuses_is_one_sentence(tmp_path, monkeypatch, num_programs):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "none"))
    broken = tmp_path / "compiler"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && echo 1 || { echo no room >&2; exit 1; }\n")
    broken.chmod(0o755)
    run = compiled(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU()), "TinySpec")
    with (
        torch._inductor.config.patch({"cpp.cxx": (str(broken),)}),
        pytest.raises(UserCodeError, match="TinySpec: ") as error,
    ):
        run(torch.randn(6, 3).tanh())
    assert "train.compile" in str(error.value)
    assert len(str(error.value)) < 1000
