"""A name and a value on each line, as the verbs that look at a job print them."""

from collections.abc import Mapping

__all__ = ["fact_lines"]


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """The lines; a fact without a value is left out."""
    return [f"{name:10} {value}" for name, value in facts.items() if value]
