"""Checks of single settings, each with the one message that a wrong value gets."""

from edl_horovod.errors import ConfigError, did_you_mean

__all__ = ["LOG_LEVELS", "check", "check_choice", "check_given", "check_least"]

LOG_LEVELS = ("debug", "info", "warning", "error")


def check(is_right: bool, key: str, value: object, rule: str) -> None:
    """Refuse a value that breaks a rule, with the rule.

    Raises:
        ConfigError: It does.
    """
    if not is_right:
        raise ConfigError(
            f"{key} {rule}.",
            received={key: value},
            hint=f"Give {key} another value, or leave it out.",
        )


def check_least(section: str, settings: object, **least: int) -> None:
    """Refuse numbers of a section, the root by the key "", that are too small; None may stay.

    Raises:
        ConfigError: One is too small.
    """
    for name, lowest in least.items():
        value = getattr(settings, name)
        key = f"{section}.{name}".removeprefix(".")
        check(value is None or value >= lowest, key, value, f"must be {lowest} or more")


def check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices, with the nearest one.

    Raises:
        ConfigError: It is none.
    """
    rule = f"must be one of {', '.join(choices)}"
    if value not in choices:
        raise ConfigError(
            f"{key} {rule}.", received={key: value}, hint=did_you_mean(value, choices)
        )


def check_given(key: str, value: str, what: str) -> None:
    """Refuse an empty value where there must be one.

    Raises:
        ConfigError: It is empty.
    """
    if not value:
        raise ConfigError(
            f"{key} must name {what}.", received={key: value}, hint=f"Write {key}=... ."
        )
