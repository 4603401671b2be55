"""The keys of `[task]` as keyword arguments of the function that makes the task: its signature says what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from p2pfl.errors import UserError


def bind_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options converted to the parameters' annotated types.

    Raises:
        UserError: an unknown key, a wrong type, or a required one that is missing.
    """
    parameters = inspect.signature(function).parameters
    _check_names(parameters, options)
    hints = _hints(function)
    return {key: _converted(key, value, hints.get(key, Any)) for key, value in options.items()}


def _check_names(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    kinds = {parameter.kind for parameter in parameters.values()}
    names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    for key, value in options.items():
        if key not in names and inspect.Parameter.VAR_KEYWORD not in kinds:
            allowed = ", ".join(names) or "none"
            raise UserError("the task has no such option", key=f"task.{key}", value=value, allowed=allowed)
    for name in names:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise UserError("the task needs this option", key=f"task.{name}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # annotations that only a type checker can read
        return {}


def _converted(key: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise UserError(str(error), key=f"task.{key}", value=value, allowed=_in_words(hint)) from None
    except TypeError:  # a type that msgspec does not know is the task's own business
        return value


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(str(choice) for choice in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def at_least(key: str, value: float, least: float) -> None:
    """Refuse an option below its bound."""
    if not value >= least:
        raise UserError("too small", key=f"task.{key}", value=value, allowed=f"at least {least}")
