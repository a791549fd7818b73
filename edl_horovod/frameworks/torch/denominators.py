"""The divisor of a scalar loss, read from the graph that autograd has of it.

A mean over a batch is a sum divided by the number of examples, by the number of tokens that are not
ignored, or by a sum of weights. Over a ring, sums and divisors are added up one by one: the mean of
the ranks' means is another number where their divisors differ.

What PyTorch's losses, `mean` and a division save for their backward pass has the divisor; see
https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Mean", "ScalarsByNode", "divisors_are_constant", "mean_of_pair", "means_of"]

_MEAN = 1
"""PyTorch's number of `reduction="mean"`."""
_PASSING = {"ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0"}
"""Nodes that pass a number on."""
_OF_MEANS = _PASSING | {"AddBackward0", "SubBackward0", "MulBackward0", "MulBackward1"}
_NLL = {"NllLossBackward0", "NllLoss2DBackward0"}
_MAX_DEPTH = 16
"""The number of nodes between a loss and its means beyond which a graph is not searched."""


@dataclass(frozen=True)
class Mean:
    """A term of a loss that is a sum divided by something."""

    node: Any
    """The node of the term in autograd's graph."""
    divisor: float
    share: float = 1.0
    """The factor of the term in the loss."""
    source: Hashable = None
    """Identifies the labels or the tensor from which the divisor is computed; None for a number of
    elements."""
    counts_labels: bool = False
    """Whether labels can be ignored, so that the divisor of another batch may be another share of
    its examples."""
    value: float | None = None
    """The term; None where it is not known."""

    @property
    def is_division(self) -> bool:
        """Whether it ends with a division in the loss; else PyTorch takes the mean."""
        return bool(self.node.name() == "DivBackward0")

    @property
    def may_be_clamped(self) -> bool:
        """Whether the divisor may be 0 that `clamp(min=1)` has made 1 of."""
        return self.divisor == 1 and self.is_division

    @property
    def counted(self) -> float:
        """The divisor; 0 where `clamp(min=1)` seems to have made 1 of it: the mean is 0, too."""
        return 0.0 if self.value == 0 and self.may_be_clamped else self.divisor

    def scale_gradient(self, factor: float) -> None:
        """Multiply the gradient that the next backward pass hands on to the term."""
        if self.counted:
            self.node.register_prehook(
                lambda gradients: tuple(None if g is None else g * factor for g in gradients)
            )
        else:
            _hand_on_zeros(self.node)


class ScalarsByNode(TorchFunctionMode):  # type: ignore[misc]  # mypy does not read torch.
    """Records the scalars that functions of PyTorch return, by their nodes in the graph."""

    def __init__(self) -> None:
        """Begin without any."""
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
    """Find the means that are added up in a loss.

    Those with the same divisor are one.

    Args:
        loss: A scalar.
        values: Scalars that were computed for it, by node.
    """
    if loss.grad_fn is None:
        return []
    means = _means(loss.grad_fn, 0)[0]
    known = values or {}
    return [
        replace(mean, value=float(known[mean.node])) if mean.node in known else mean
        for mean in means
    ]


def mean_of_pair(total: torch.Tensor, divisor: float) -> tuple[torch.Tensor, Mean]:
    """The mean for a sum and its divisor that a loss has returned."""
    mean = total / total.new_tensor(divisor)
    return mean, Mean(mean.grad_fn, divisor, value=float(mean.detach()))


def divisors_are_constant(tries: Sequence[Sequence[Mean]], counts: Sequence[int]) -> bool:
    """Whether the divisors of some means depend on the number of examples alone.

    Args:
        tries: The means of the losses of some batches.
        counts: The numbers of examples of these batches.
    """
    # A sum of weights may be the number of examples in the tries and not in other batches.
    if any(mean.counts_labels or mean.source is not None for mean in tries[0]):
        return False
    shares = [
        [mean.divisor / count for mean in means] for means, count in zip(tries, counts, strict=True)
    ]
    return len(shares) > 1 and all(share == shares[0] for share in shares)


def _means(node: Any, depth: int) -> tuple[list[Mean], bool]:
    """The means in the term of a node, and whether it consists of these alone."""
    if node is None or depth > _MAX_DEPTH:
        return [], False
    name = node.name()
    if name in _PASSING:
        return _means(_child(node), depth + 1)
    if name in ("NegBackward0", "RsubBackward1"):
        return _scaled(_means(_child(node), depth + 1), -1.0)
    if name in ("AddBackward0", "SubBackward0"):
        return _of_sum(node, name, depth)
    if name in ("MulBackward0", "MulBackward1"):
        return _of_product(node, depth)
    if name in ("DivBackward0", "DivBackward1"):
        return _of_quotient(node, depth)
    if name in _NLL and node._saved_reduction == _MEAN:
        divisor = float(node._saved_total_weight)
        return [Mean(node, divisor, source=_labels_of(node), counts_labels=True)], True
    if name == "MeanBackward0":
        return [Mean(node, float(node._saved_self_sym_numel))], True
    if name == "MeanBackward1":
        return [Mean(node, float(math.prod(node._saved_self_sym_sizes)))], True
    if name not in _NLL and getattr(node, "_saved_reduction", None) == _MEAN:
        return [Mean(node, float(node._saved_self.numel()))], True
    return [], False


def _scaled(terms: tuple[list[Mean], bool], factor: float) -> tuple[list[Mean], bool]:
    means, is_all = terms
    return [replace(mean, share=mean.share * factor) for mean in means], is_all


def _of_sum(node: Any, name: str, depth: int) -> tuple[list[Mean], bool]:
    alpha = float(getattr(node, "_saved_alpha", 1))
    factors = (1.0, -alpha if name == "SubBackward0" else alpha)
    terms = [
        _scaled(_means(child, depth + 1), factor)
        for (child, _), factor in zip(node.next_functions, factors, strict=False)
    ]
    means = [mean for its, _ in terms for mean in its]
    is_all = len(terms) == 2 and all(is_all for _, is_all in terms)
    if is_all and _have_same_divisor(means):
        return [replace(means[0], node=node, share=1.0)], True
    return means, is_all


def _of_product(node: Any, depth: int) -> tuple[list[Mean], bool]:
    """A product with a number; one with another variable is no sum of means."""
    children = [child for child, _ in node.next_functions if child is not None]
    if len(children) != 1:
        return [], False
    is_first = node.next_functions[0][0] is not None
    factor = node._saved_other if is_first else node._saved_self
    if factor is None or (isinstance(factor, torch.Tensor) and factor.ndim):
        return [], False
    return _scaled(_means(children[0], depth + 1), float(factor))


def _of_quotient(node: Any, depth: int) -> tuple[list[Mean], bool]:
    """A sum that is divided is a mean; a mean that is divided is a share of one."""
    above, *below = [child for child, _ in node.next_functions]
    divisor = node._saved_other
    if above is None or any(below) or (isinstance(divisor, torch.Tensor) and divisor.ndim):
        return [], False
    means, is_all = _means(above, depth + 1)
    number = float(divisor)
    if means:
        return _scaled((means, is_all), 1 / number if number else math.nan)
    source = divisor.data_ptr() if isinstance(divisor, torch.Tensor) else None
    return [Mean(node, number, source=source)], True


def _have_same_divisor(means: Sequence[Mean]) -> bool:
    """Whether some means are divided by the same, whatever a batch has.

    Equal numbers are no proof: two outputs may have the same number of labels that are not ignored
    in one batch, and different numbers in the next one.
    """
    first, *others = means
    return all(
        math.isclose(mean.divisor, first.divisor, rel_tol=1e-5)
        and ((first.source is not None and mean.source == first.source) or _is_smooth(first, mean))
        for mean in others
    )


def _is_smooth(nll: Mean, rest: Mean) -> bool:
    """Whether two means are the parts of a cross entropy with label smoothing.

    PyTorch divides each of them.
    """
    if nll.node.name() not in _NLL or not rest.is_division:
        return False
    log_probabilities, node = _child(nll.node), rest.node
    while log_probabilities is not None and log_probabilities.name() in _PASSING:
        log_probabilities = _child(log_probabilities)
    for _ in range(_MAX_DEPTH):
        if node is None or node is log_probabilities:
            break
        node = _child(node)
    return node is not None and node is log_probabilities


def _hand_on_zeros(node: Any) -> None:
    """Have nothing come out of a mean over nothing: the gradient of 0 / 0 is not a number."""
    if node is None:
        return
    if node.name() in _OF_MEANS:
        for child, _ in node.next_functions:
            _hand_on_zeros(child)
    else:
        node.register_hook(
            lambda gradients, _: tuple(
                None if g is None else torch.zeros_like(g) for g in gradients
            )
        )


def _labels_of(node: Any) -> Hashable:
    labels, weight = node._saved_target, node._saved_weight
    weights = None if weight is None else weight.data_ptr()
    return labels.data_ptr(), labels.numel(), node._saved_ignore_index, weights


def _child(node: Any) -> Any:
    return node.next_functions[0][0] if node.next_functions else None
