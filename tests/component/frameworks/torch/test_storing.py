"""What a model keeps is stored bit by bit, or refused before the first step.

Each model is an ordinary module; what is special about it stands in the case.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.job import checkpoint_files
from edl_horovod.ring.checkpoint import read_tensors
from tests.later import LATER

if LATER:
    import torch
    from safetensors.torch import load_file

POINTS = "dataset:tests.zoo.torch_modules.Points"


@dataclass(frozen=True, kw_only=True)
class Case:
    init: str = ""
    forward: str = "x"
    methods: str = ""
    stored: tuple[str, ...] = ()
    """Names in the trained model beside the layer's."""


CASES = {
    "extra state": Case(
        methods="""
        def get_extra_state(self):
            return {"version": 3, "grid": torch.ones(2)}

        def set_extra_state(self, state):
            raise AssertionError
        """
    ),
    "a state_dict of its own": Case(
        init="self._register_state_dict_hook(lambda *given: given[1].update(author='me'))",
        methods="""
        def state_dict(self, *given, **named):
            whole = super().state_dict(*given, **named)
            return {name: value for name, value in whole.items() if name != "layer.bias"}
        """,
    ),
    "views of one tensor": Case(
        init="""
        both = torch.arange(6) / 7
        self.register_buffer("scale", both[:4])
        self.register_buffer("shift", both[2:])
        """,
        forward="x * self.scale + self.shift",
        stored=("scale", "shift"),
    ),
    "overlapping parameters": Case(
        init="""
        both = torch.arange(6) / 7
        self.scale, self.shift = nn.Parameter(both[:4]), nn.Parameter(both[2:])
        """,
        forward="x * self.scale + self.shift",
        stored=("scale", "shift"),
    ),
    "complex64": Case(
        init="self.register_buffer('turn', torch.polar(torch.ones(4), torch.arange(4.0)))",
        forward="(x * self.turn).real",
        stored=("turn",),
    ),
    "complex128": Case(
        init="self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex128))",
        forward="(x * self.turn).real.float()",
        stored=("turn",),
    ),
    "float8": Case(
        init="""
        for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"):
            self.register_buffer(kind, torch.full((4,), 0.5).to(getattr(torch, f"float8_{kind}")))
        """,
        forward="x * self.e4m3fn.float() * self.e8m0fnu.float()",
        stored=("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"),
    ),
    "a sparse buffer that is not stored": Case(
        init="self.register_buffer('edges', torch.eye(4).to_sparse(), persistent=False)",
        forward="(self.edges @ x.T).T",
    ),
}

REFUSED = {
    "extra state that a pass changes": (
        Case(
            init="self.passes = [0]",
            forward="x + 0 * self.passes.append(0) if self.passes.append(0) else x",
            methods="""
            def get_extra_state(self):
                return {"passes": len(self.passes)}

            def set_extra_state(self, state):
                pass
            """,
        ),
        r"get_extra_state.*register_buffer",
    ),
    "a sparse buffer": (
        replace(
            CASES["a sparse buffer that is not stored"],
            init="self.register_buffer('edges', torch.eye(4).to_sparse())",
        ),
        r"'edges' .*persistent=False",
    ),
    "a type without a name in NumPy": (
        Case(init="self.register_buffer('short', torch.ones(4, dtype=torch.complex32))"),
        r"'short' .*complex32.*complex64",
    ),
    "an expanded buffer": (
        Case(init="self.register_buffer('same', torch.ones(1).expand(4))"),
        r"'same' .*clone",
    ),
    "a tensor without numbers": (
        Case(init="self.register_buffer('nothing', torch.ones(4, device='meta'))"),
        r"(?s)Taking the model of .*meta",
    ),
}


@pytest.fixture
def train(run, write_module):
    """Train a case's module for 8 steps, with a checkpoint after the third and the sixth."""

    def train_it(case, *settings, **keywords):
        module = write_module(case.init, f"self.layer({case.forward})", case.methods)
        data = f"data={POINTS}"
        steps = ("train.epochs=2", "checkpoint.every_steps=3")
        return run("train", *module, data, *steps, *settings, **keywords)

    # Sparse rows, and complex numbers of 4 bytes, are called experimental.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*(beta state|is experimental)", UserWarning)
        yield train_it


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_training_stores_what_a_model_keeps_and_goes_on(train, run, case, tmp_path):
    whole = train(case, job="whole")
    train(case, until=4)
    second = train(case, "resume=must")
    assert sorted(second.losses) == [5, 6, 7, 8]
    for name, value in whole.state.items():
        np.testing.assert_array_equal(second.state[name], value, err_msg=name)

    data = f"data={POINTS}"
    evaluated = run("evaluate", f"trained_model={tmp_path}/job-out", data, job="evaluation")
    assert evaluated.result.metrics["loss"] < whole.losses[1]

    stored = ["layer.bias", "layer.weight", *case.stored]
    tensors, _ = read_tensors(checkpoint_files.path_of(tmp_path / "job" / "checkpoints", 8))
    values = load_file(tmp_path / "job-out" / "model.safetensors")
    assert sorted(values) == sorted(stored)
    for name in stored:
        assert tensors[name].dtype == second.state[name].dtype
        value = dict(second.step.model.runner.module.named_parameters()).get(name)
        if value is not None and value.dtype != torch.complex128:
            assert torch.equal(values[name], value)


@pytest.mark.parametrize(("case", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_is_refused_before_the_first_step(train, case, message):
    with pytest.raises(UserCodeError, match=message):
        train(case)
