"""Checks of single settings, each with the one message that a wrong value gets."""

from collections.abc import Collection

from edl_horovod.errors import ConfigError, did_you_mean


def check(is_right: bool, key: str, value: object, rule: str) -> None:
    """Refuse a value that breaks a rule.

    Args:
        is_right: Whether the value follows the rule.
        key: The setting.
        value: Its value.
        rule: The rest of a sentence that begins with the key: "must be 1 or more".

    Raises:
        ConfigError: The value breaks the rule.
    """
    if not is_right:
        raise ConfigError(
            f"{key} {rule}.",
            received={key: value},
            hint=f"Give {key} another value, or leave it out.",
        )


def check_least(section: str, settings: object, **least: int) -> None:
    """Refuse numbers of a section that are too small; None is allowed.

    Args:
        section: The key of the section; empty for the root of the settings.
        settings: The section.
        least: The lowest allowed value of each field.

    Raises:
        ConfigError: A number is too small.
    """
    for name, lowest in least.items():
        value = getattr(settings, name)
        key = f"{section}.{name}".removeprefix(".")
        check(value is None or value >= lowest, key, value, f"must be {lowest} or more")


def check_choice(key: str, value: str, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices, and offer the nearest choice.

    Raises:
        ConfigError: The value is not among the choices.
    """
    if value not in choices:
        raise ConfigError(
            f"{key} must be one of {', '.join(choices)}.",
            received={key: value},
            hint=did_you_mean(value, choices),
        )


def check_given(key: str, value: str, noun: str) -> None:
    """Refuse an empty value of a setting that is required.

    Args:
        key: The setting.
        value: Its value.
        noun: What the setting names: "the input files".

    Raises:
        ConfigError: The value is empty.
    """
    if not value:
        raise ConfigError(
            f"{key} must name {noun}.", received={key: value}, hint=f"Write {key}=... ."
        )
