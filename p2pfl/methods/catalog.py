"""From a spec like `variate:beta=0.1` to the method. Its grammar is in `spelling`."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from p2pfl.core.messages import MOST_TERMS
from p2pfl.errors import UserError
from p2pfl.methods import fair, momentum, normalized, outer, plain, prox, tracking, variate  # noqa: F401 - they add themselves
from p2pfl.methods.method import CONSERVATIVE, METHODS, MODEL, ROBUST, Method, TrainingKeys
from p2pfl.methods.spelling import ParsedMethod, allowed, parse_method
from p2pfl.plugins import FAILURES, describe_failure, find_object

KEY = "training.method"
CODE_DIGITS = 16
TAKEN = frozenset({MODEL, "anchor", "own", "peer", "local", "kept", "pending", "reply"})
"""Names that already mean something else in a round, or in the files of a state."""
_UNFIT = {
    ROBUST: "this method needs exchanges that move models, and under a robust rule none do",
    CONSERVATIVE: "this method is for robust rules only",
}


def make_method(
    spec: str, training: TrainingKeys, *, profile: str | None = CONSERVATIVE, folder: Path | None = None
) -> Method:
    """Make the method of a spec, ready to use. A path to a `file.py` is relative to `folder`; without a `profile` the
    check for the profile is left out.

    Raises UserError: the spec is wrong, or the method is not valid in this profile, or with this training.
    """
    try:
        parsed = parse_method(spec)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec, allowed=allowed()) from None
    made = _from_user(parsed, folder or Path()) if parsed.is_object else METHODS[parsed.name].make(parsed.parameters)
    _check(made, str(parsed))
    made.spec, made.is_users = str(parsed), parsed.is_object
    made.code = f"{parsed.name}@{_digest(made)}" if parsed.is_object else parsed.name
    if profile is not None and profile not in made.profiles:
        raise UserError(made.unfit or _UNFIT[profile], key=KEY, value=spec, allowed=_methods_for(profile))
    try:
        made.prepare(training)
    except ValueError as error:
        raise UserError(str(error), key=KEY, value=spec) from None
    except FAILURES as error:
        raise UserError(f"the method failed: {describe_failure(error)}", key=KEY, value=spec) from error
    return made


def _from_user(parsed: ParsedMethod, folder: Path) -> Method:
    found = find_object(parsed.name, folder, what="method", key=KEY, allowed=allowed())
    try:
        made = found(**parsed.parameters) if callable(found) else found
    except FAILURES as error:
        raise UserError(f"the method failed: {describe_failure(error)}", key=KEY, value=str(parsed)) from error
    if not isinstance(made, Method):
        text = f"{parsed.name} is not a method"
        raise UserError(text, key=KEY, value=type(made).__name__, allowed="a class derived from p2pfl.Method")
    return made


def _methods_for(profile: str) -> str:
    if profile == CONSERVATIVE:
        return "another method, or a robust rule"
    fitting = [name for name, entry in METHODS.items() if profile in getattr(entry.made, "profiles", ())]
    return f"{', '.join(fitting)}; or gossip.rule = mean"


def _check(method: Method, spec: str) -> None:
    """Refuse at the start what would make a user's method fail later."""
    for name in ("channels", "kept", "kept_edges", "given"):
        names = getattr(method, name)
        if not isinstance(names, tuple) or not all(isinstance(one, str) and one.isidentifier() for one in names):
            raise UserError(
                f"{name} of the method is not a tuple of names", key=KEY, value=repr(names), allowed='("a", "b")'
            )
        if len(set(names)) < len(names) or (name != "channels" and TAKEN.intersection(names)):
            text = f"{name} of the method has a duplicate or reserved name"
            raise UserError(text, key=KEY, value=repr(names), allowed=f"others than {', '.join(sorted(TAKEN))}")
    if method.channels[:1] != (MODEL,):
        text = f"the first channel of a method is the model; this one has {method.channels}"
        raise UserError(text, key=KEY, value=spec, allowed=f'channels = ("{MODEL}", ...)')
    terms = method.no_terms
    if (
        not isinstance(terms, tuple)
        or len(terms) > MOST_TERMS
        or not all(isinstance(t, float) and t >= 0 for t in terms)
    ):
        raise UserError("no_terms is not a tuple of numbers", key=KEY, value=repr(terms), allowed="(0.0,)")
    if not isinstance(method.profiles, frozenset) or not method.profiles <= {CONSERVATIVE, ROBUST}:
        allowed = f'frozenset({{"{CONSERVATIVE}", "{ROBUST}"}})'
        raise UserError("profiles of the method is not a set of profiles", key=KEY, value=spec, allowed=allowed)


def _digest(method: Method) -> str:
    """Hash the file that defines the method's class, and the names that the method keeps and exchanges."""
    try:
        text = Path(inspect.getfile(type(method))).read_bytes()
    except (OSError, TypeError):
        text = type(method).__qualname__.encode()
    digest = hashlib.blake2b(text, digest_size=CODE_DIGITS // 2, person=b"p2pfl-method")
    digest.update(repr((method.channels, method.kept, method.kept_edges, len(method.no_terms))).encode())
    return digest.hexdigest()
