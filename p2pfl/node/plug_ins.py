"""The user's own features, which a federation file names: import them, and check them against their declarations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from p2pfl.config.model import FederationConfig, PlugIn, needed_features
from p2pfl.config.tables import Mistakes, unknown_keys
from p2pfl.errors import UserError
from p2pfl.node.feature import Feature
from p2pfl.plugins import FAILURES, describe_failure, find_object
from p2pfl.reporting.alarms import ALARMS, AlarmText

ALLOWED = "file.py:object or package.module:object, a class derived from p2pfl.node.feature.Feature"


def all_features(federation: FederationConfig, known: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return the `known` features, then those of the file.

    Raises UserError: a feature cannot be imported, or is no feature; two have one name; one needs another that is
    missing.
    """
    found = list(known)
    for one in federation.plug_ins:
        found.append(_make(one, federation))
        if one.name in {other.name for other in found[:-1]}:
            text, allowed = "there is a feature of that name already", "another name, here and in the feature"
            raise UserError(text, file=federation.path, key=f"features.{one.name}", value=one.spec, allowed=allowed)
        options_of(found[-1], federation)
    names = {feature.name for feature in found}
    for name, key in needed_features(federation).items():
        if name not in names:
            text = f"needs the feature {name}, which this node does not have"
            raise UserError(text, file=federation.path, key=key, allowed="a node with it, or no such key")
    for feature in found:
        for name in feature.needs:
            if name not in names:
                text, key = f"the feature {feature.name} needs {name}, which is not there", f"features.{feature.name}"
                raise UserError(text, file=federation.path, key=key, allowed=", ".join(sorted(names)))
    return tuple(found)


def alarm_texts(features: Iterable[Feature]) -> dict[str, AlarmText]:
    """Return the texts of each kind of alarm. Raises UserError: two features have the same kind."""
    found = dict(ALARMS)
    for feature in features:
        for kind, said in feature.alarms.items():
            if kind in found:
                text = f"the feature {feature.name} brings an alarm that there is already"
                raise UserError(text, key=f"features.{feature.name}", value=kind, allowed="another kind")
            found[kind] = said
    return found


def _make(plug_in: PlugIn, federation: FederationConfig) -> Feature:
    key, file = f"features.{plug_in.name}", federation.path
    try:
        made = find_object(plug_in.spec, file.parent, what="feature", key=key, allowed=ALLOWED)
        made = made() if isinstance(made, type) else made
    except UserError as error:
        error.file = error.file or str(file)
        raise
    except FAILURES as error:
        text = f"the feature could not be made: {describe_failure(error)}"
        raise UserError(text, file=file, key=key, value=plug_in.spec, allowed=ALLOWED) from error
    if not isinstance(made, Feature):
        raise UserError("is not a feature", file=file, key=key, value=plug_in.spec, allowed=ALLOWED)
    if made.name != plug_in.name:
        text = f"the feature there calls itself {made.name!r}"
        raise UserError(text, file=file, key=key, value=plug_in.spec, allowed=f"{made.name} = {plug_in.spec!r}")
    return made


def options_of(feature: Feature, federation: FederationConfig) -> Any:
    """Return the feature's table in the federation file as its `section`; None: it has none.

    Raises UserError: a key is wrong.
    """
    found = next((one.options for one in federation.plug_ins if one.name == feature.name), None)
    if found is None or (feature.section is None and not found):
        return None
    mistakes = Mistakes(federation.path)
    known = () if feature.section is None else msgspec.structs.fields(feature.section)
    unknown_keys(found, f"{feature.name}.", [key.encode_name for key in known], mistakes)
    if mistakes.found:
        mistakes.found[0].allowed = mistakes.found[0].allowed or "no key at all"
        raise mistakes.found[0]
    try:
        return msgspec.convert(found, feature.section)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        key = ".".join([feature.name, *([place.rstrip("`")] if place else [])])
        raise UserError(text, file=federation.path, key=key, value=found.get(place.rstrip("`"))) from None
