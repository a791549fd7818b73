"""The divisors of a scalar loss, found in its autograd graph.

A mean over a batch is a sum divided by the number of examples, by the number of tokens that are not
ignored, or by a sum of weights. Over a ring, sums and divisors are added separately: the mean of
the ranks' means is wrong if their divisors differ.

PyTorch's losses, `mean` and divisions save their divisor for the backward pass; see
https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from edl_horovod.errors import UserCodeError

_MEAN = 1
"""PyTorch's code for `reduction="mean"`."""
_IDENTITIES = {"ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0"}
"""Nodes that do not change a scalar's value."""
_SUMS = {"AddBackward0", "SubBackward0"}
_LINEAR = _IDENTITIES | _SUMS | {"MulBackward0", "MulBackward1"}
_NLL = {"NllLossBackward0", "NllLoss2DBackward0"}
_SELECTIONS = {
    *("IndexBackward0", "IndexSelectBackward0", "MaskedSelectBackward0", "TakeBackward0"),
    "PackPaddedSequenceBackward0",
}
"""Nodes whose number of elements may depend on the values in a batch."""
_MAX_DEPTH = 100
"""Maximum number of nested products, quotients and sums of a loss, by Python's own limit."""
_MAX_SMOOTHING_DEPTH = 16
"""Maximum number of nodes between the two parts of a cross entropy with label smoothing."""


@dataclass(frozen=True)
class Mean:
    """A term of a loss that is a sum with a divisor."""

    node: Any
    """The term's node in the autograd graph."""
    divisor: float
    share: float = 1.0
    """The factor of the term in the loss."""
    source: Hashable = None
    """Identity of the labels or tensor that the divisor is computed from; None if it is a number of
    elements."""
    counts_labels: bool = False
    """Whether labels can be ignored, so that the ratio of the divisor to the number of examples may
    differ between batches."""
    value: float | None = None
    """The term's value; None if it was not recorded."""

    @property
    def is_division(self) -> bool:
        """Whether the user's loss divides explicitly; otherwise PyTorch computes the mean."""
        return bool(self.node.name() == "DivBackward0")

    @property
    def may_be_clamped(self) -> bool:
        """Whether the divisor of 1 may be a 0 that `clamp(min=1)` has replaced."""
        return self.divisor == 1 and self.is_division

    @property
    def counted(self) -> float:
        """The divisor; 0 if `clamp(min=1)` has probably replaced a 0, as the mean is 0, too."""
        return 0.0 if self.value == 0 and self.may_be_clamped else self.divisor

    def scale_gradient(self, factor: float) -> None:
        """Multiply the gradient of the term in the next backward pass."""
        if self.counted:
            self.node.register_prehook(_hook(lambda gradient: gradient * factor))
        else:
            _zero_gradients(self.node)


class ScalarsByNode(TorchFunctionMode):  # type: ignore[misc]  # mypy does not read torch.
    """Records the scalars that PyTorch's functions return, by their nodes in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Any, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function and record what it returns."""
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor) and not returned.ndim and returned.grad_fn:
            self.values[returned.grad_fn] = returned.detach()
        return returned


def means_of(loss: torch.Tensor, values: Mapping[Any, torch.Tensor] | None = None) -> list[Mean]:
    """Find the means that are terms of a loss; terms with the same divisor are combined.

    Args:
        loss: A scalar.
        values: Recorded scalars of its computation, by node.
    """
    if loss.grad_fn is None:
        return []
    known = values or {}
    return [
        replace(mean, value=float(known[mean.node])) if mean.node in known else mean
        for mean in _means(loss.grad_fn, 0)
        if mean is not None
    ]


def mean_of_pair(total: torch.Tensor, divisor: float) -> tuple[torch.Tensor, Mean]:
    """Return the mean, as a tensor and as a `Mean`, for a loss given as a sum and its divisor."""
    mean = total / total.new_tensor(divisor)
    return mean, Mean(mean.grad_fn, divisor, value=float(mean.detach()))


def is_over_examples(mean: Mean, repeated: Mean) -> bool:
    """Whether a mean is over a batch; otherwise it is over tasks, columns or parameters.

    Args:
        mean: A mean in the loss of some examples.
        repeated: The same mean for a batch that has each of these examples twice.
    """
    if not mean.divisor or mean.divisor != repeated.divisor:
        return True
    # If no example counts, `clamp` or a small term may have replaced a 0 in both batches.
    is_clamped = mean.source is not None and not mean.value
    return is_clamped


def divisors_are_constant(
    tries: Sequence[Sequence[Mean]], counts: Sequence[int], repeated: Sequence[Mean]
) -> bool:
    """Whether the divisors of a loss depend only on the number of examples.

    Args:
        tries: For each of some batches, the means in its loss.
        counts: The number of examples of each of these batches.
        repeated: The means for a batch that has each of the first one's examples twice.
    """
    # A sum of weights, or a number of chosen examples, may equal the number of examples in these
    # batches but not in others.
    if any(mean.counts_labels or mean.source is not None for mean in tries[0]) or any(
        _selection_sizes(mean.node) != _selection_sizes(twice.node)
        for mean, twice in zip(tries[0], repeated, strict=True)
    ):
        return False
    counted = zip(tries, counts, strict=True)
    ratios = [[mean.divisor / count for mean in means] for means, count in counted]
    return len(ratios) > 1 and all(ratio == ratios[0] for ratio in ratios)


def _means(node: Any, depth: int) -> list[Mean | None]:
    """Return the means in the term of a node; None stands for a part that is not a mean."""
    if node is None:
        return [None]
    if depth > _MAX_DEPTH:
        raise UserCodeError(
            "The loss has too many nested products, quotients and sums to find what it is divided"
            " by.",
            received=f"more than {_MAX_DEPTH}",
            hint="Add up the terms in a list first: torch.stack(terms).sum().",
        )
    name = node.name()
    if name in _IDENTITIES:
        return _means(_child(node), depth + 1)
    if name in ("NegBackward0", "RsubBackward1"):
        return _scaled(_means(_child(node), depth + 1), -1.0)
    if name in _SUMS:
        return _means_of_sum(node, depth)
    if name in ("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1"):
        stacked = _means_of_stack(node, depth)
        if any(stacked):
            return stacked
    if name in ("MulBackward0", "MulBackward1"):
        return _means_of_product(node, depth)
    if name in ("DivBackward0", "DivBackward1"):
        return _means_of_quotient(node, depth)
    if name in _NLL and node._saved_reduction == _MEAN:
        divisor = float(node._saved_total_weight)
        return [Mean(node, divisor, source=_labels_identity(node), counts_labels=True)]
    if name == "MeanBackward0":
        return [Mean(node, float(node._saved_self_sym_numel))]
    if name == "MeanBackward1":
        return [Mean(node, float(math.prod(node._saved_self_sym_sizes)))]
    if name not in _NLL and getattr(node, "_saved_reduction", None) == _MEAN:
        return [Mean(node, float(node._saved_self.numel()))]
    return [None]


def _scaled(means: Sequence[Mean | None], factor: float) -> list[Mean | None]:
    if factor == 1.0:
        return list(means)
    return [mean and replace(mean, share=mean.share * factor) for mean in means]


def _means_of_sum(root: Any, depth: int) -> list[Mean | None]:
    """The means in nested sums; without recursion, as a loss may add up hundreds of terms."""
    pending, done = [(root, False)], list[list[Mean | None]]()
    while pending:
        node, has_terms = pending.pop()
        if node is None or node.name() not in _SUMS:
            done.append(_means(node, depth + 1))
        elif has_terms:
            num_children = len(node.next_functions)
            done[-num_children:] = [_means_of_terms(node, done[-num_children:])]
        else:
            pending.append((node, True))
            pending += [(child, False) for child, _ in reversed(node.next_functions)]
    return done.pop()


def _means_of_terms(node: Any, terms_of: Sequence[Sequence[Mean | None]]) -> list[Mean | None]:
    """The means in the sum or the difference of two terms with these means."""
    alpha = float(getattr(node, "_saved_alpha", 1))
    factors = (1.0, -alpha if node.name() == "SubBackward0" else alpha)
    parts = itertools.starmap(_scaled, zip(terms_of, factors, strict=False))
    terms = list(itertools.chain.from_iterable(parts))
    means = [mean for mean in terms if mean is not None]
    if len(terms_of) == 2 and len(means) == len(terms) and _have_same_divisor(means):
        return [replace(means[0], node=node, share=1.0)]
    return terms


def _means_of_stack(node: Any, depth: int) -> list[Mean | None]:
    """The means in the sum or the mean of stacked scalars."""
    stack = _child(node)
    is_flat = len(node._saved_self_sym_sizes) == 1
    if stack is None or stack.name() != "StackBackward0" or not is_flat:
        return []
    children = [child for child, _ in stack.next_functions]
    factor = 1 / len(children) if node.name().startswith("Mean") else 1.0
    return [mean for child in children for mean in _scaled(_means(child, depth + 1), factor)]


def _means_of_product(node: Any, depth: int) -> list[Mean | None]:
    """The means in a product with a constant; a product of two variables is not a sum of means."""
    children = [child for child, _ in node.next_functions if child is not None]
    if len(children) != 1:
        return [None]
    is_first = node.next_functions[0][0] is not None
    factor = node._saved_other if is_first else node._saved_self
    if factor is None or getattr(factor, "ndim", None):
        return [None]
    return _scaled(_means(children[0], depth + 1), float(factor))


def _means_of_quotient(node: Any, depth: int) -> list[Mean | None]:
    """The means in a quotient: a divided sum is a mean, and a divided mean has a smaller share."""
    numerator, *divisor_nodes = [child for child, _ in node.next_functions]
    divisor = node._saved_other
    if numerator is None or any(divisor_nodes) or getattr(divisor, "ndim", None):
        return [None]
    means, value = _means(numerator, depth + 1), float(divisor)
    if any(means):
        return _scaled(means, 1 / value if value else math.nan)
    source = divisor.data_ptr() if isinstance(divisor, torch.Tensor) else None
    return [Mean(node, value, source=source)]


def _have_same_divisor(means: Sequence[Mean]) -> bool:
    """Whether these means have the same divisor in every batch.

    Equal numbers are not sufficient: two outputs may have the same number of labels that are not
    ignored in one batch, and different numbers in the next one.
    """
    first, *others = means
    return all(
        math.isclose(mean.divisor, first.divisor, rel_tol=1e-5)
        and (
            (first.source is not None and mean.source == first.source)
            or _is_label_smoothing(first, mean)
        )
        for mean in others
    )


def _is_label_smoothing(nll: Mean, other: Mean) -> bool:
    """Whether two means are the parts of a cross entropy with label smoothing.

    PyTorch divides each part separately, by the same divisor.
    """
    if nll.node.name() not in _NLL or not other.is_division:
        return False
    log_probabilities, node = _child(nll.node), other.node
    while log_probabilities is not None and log_probabilities.name() in _IDENTITIES:
        log_probabilities = _child(log_probabilities)
    for _ in range(_MAX_SMOOTHING_DEPTH):
        if node is None or node is log_probabilities:
            break
        node = _child(node)
    return node is not None and node is log_probabilities


def _selection_sizes(root: Any) -> list[int]:
    """The numbers of elements of all selections in the graph below a node."""
    pending, seen, sizes = [root], {root}, []
    while pending:
        node = pending.pop()
        if node.name() in _SELECTIONS:
            sizes.append(math.prod(node._input_metadata[0].shape))
        new = [c for c, _ in node.next_functions if c is not None and c not in seen]
        seen.update(new)
        pending += new
    return sizes


def _zero_gradients(node: Any) -> None:
    """Make the gradients below an empty mean zero, as the gradient of 0 / 0 is NaN."""
    if node is None:
        return
    if node.name() in _LINEAR:
        for child, _ in node.next_functions:
            _zero_gradients(child)
    else:
        node.register_hook(_hook(torch.zeros_like))


def _hook(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return a hook of a node that changes its gradients."""
    return lambda gradients, *_: tuple(g if g is None else change(g) for g in gradients)


def _labels_identity(node: Any) -> Hashable:
    labels, weight = node._saved_target, node._saved_weight
    weights = None if weight is None else weight.data_ptr()
    return labels.data_ptr(), labels.numel(), node._saved_ignore_index, weights


def _child(node: Any) -> Any:
    return node.next_functions[0][0] if node.next_functions else None
