"""What a spec may say stands once: a class alone is in parser, error text and listing, with the bounds that it says."""

from __future__ import annotations

import json
import math

import pytest

from p2pfl.aggregate import RULES, TrimmedMean, liars, make_rule, parse_rule
from p2pfl.compress import STAGES, VALUES, Float16, make_compressor
from p2pfl.compress import parse as parse_compressor
from p2pfl.config import SCHEDULES, TrainingConfig, compressor, method, rule
from p2pfl.core import STALENESS
from p2pfl.methods import METHODS, Method, make_method, parse_method
from p2pfl.specs import Bounds, Catalog, Entry, Parameter, number


@pytest.fixture
def toys(monkeypatch):
    """Catalogs to which a test may add."""
    for catalog in (RULES, STAGES, METHODS):
        monkeypatch.setattr(catalog, "entries", dict(catalog.entries))


PULL = Parameter("pull", number(0, 2, below=True), "how far it goes")


@pytest.mark.usefixtures("toys")
def test_a_rule_is_known_by_its_class_alone(p2pfl):
    @RULES.add(
        name="toy-mean",
        aliases=("plaything",),
        means="plays",
        source="here",
        parameters=(liars("toys"), PULL),
        bound="none",
        cost="none",
    )
    class Toy(TrimmedMean):
        def __init__(self, f: int = 0, pull: float = 0.5) -> None:
            super().__init__(f)
            self.pull = pull

    assert str(parse_rule("toy-mean")) == "toy-mean:b=1"
    assert str(parse_rule("nnm+toy-mean:pull=1")) == "nnm+toy-mean:b=1,pull=1.0"
    assert make_rule("toy-mean:b=2,pull=1").rule.pull == 1.0
    assert "toy-mean" in rule().allowed
    with pytest.raises(ValueError, match="did you mean toy-mean"):
        parse_rule("plaything")
    with pytest.raises(ValueError, match=r"as in b=1,pull=0\.5"):
        parse_rule("toy-mean:push=1")
    rows = {row["rule"]: row for row in json.loads(p2pfl("list", "rules", "--format", "json").out)}
    row = rows["toy-mean:b=1"]
    assert (row["does"], row["b_means"], row["source"]) == ("plays", "toys", "here")
    assert row["parameters"] == "pull=0.5 (a number from 0, below 2): how far it goes"


@pytest.mark.usefixtures("toys")
def test_a_method_is_known_by_its_class_alone(p2pfl):
    @METHODS.add(name="toy", aliases=("plaything",), means="plays", source="here", parameters=(PULL,))
    class Toy(Method):
        def __init__(self, pull: float = 0.5) -> None:
            self.pull = pull

    assert str(parse_method("toy")) == "toy:pull=0.5"
    assert make_method("toy:pull=1", TrainingConfig()).pull == 1.0
    assert "toy:pull=0.5" in method().allowed
    with pytest.raises(ValueError, match="did you mean toy"):
        parse_method("plaything")
    rows = {row["method"]: row for row in json.loads(p2pfl("list", "methods", "--format", "json").out)}
    assert rows["toy:pull=0.5"]["does"] == "plays"
    assert "below 2" in rows["toy:pull=0.5"]["parameters"]


@pytest.mark.usefixtures("toys")
def test_a_code_for_values_is_known_by_its_class_alone(p2pfl):
    @STAGES.add(name="toy16", place=VALUES, aliases=("plaything",), means="plays")
    class Toy(Float16):
        pass

    assert str(parse_compressor("top-k:0.5+toy16+zstd")) == "top-k:0.5+toy16+zstd"
    assert isinstance(make_compressor("toy16"), Toy)
    assert "toy16" in compressor().allowed
    with pytest.raises(ValueError, match="did you mean toy16"):
        parse_compressor("plaything")
    with pytest.raises(ValueError, match="each is a code for the values"):
        parse_compressor("toy16+q8")
    stages = {row["stage"]: row for row in json.loads(p2pfl("list", "compressors", "--format", "json").out)["stages"]}
    assert stages["toy16"]["does"] == "plays"


def bounds_of(one: Parameter) -> Bounds:
    """The bounds that the schema of a key would have."""
    schema, most = one.kind.schema, 2**63 - 1 if one.kind.schema["type"] == "integer" else math.inf
    above, below = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
    least = schema["exclusiveMinimum" if above else "minimum"]
    return Bounds(least, schema.get("exclusiveMaximum" if below else "maximum", most), above, below)


def inside(bounds: Bounds, step: float) -> list[float]:
    ends = (bounds.least + step * bounds.above, bounds.most - step * bounds.below)
    return [end for end in ends if abs(end) < 2**63 - 1 or end < 1e300]


def beyond(bounds: Bounds, step: float) -> list[float]:
    low = bounds.least if bounds.above else bounds.least - step
    high = bounds.most if bounds.below else bounds.most + step
    return [end for end in (low, high) if math.isfinite(end)]


def spelled(value: float) -> str:
    return repr(value) if math.isfinite(value) else "1e300"


CATALOGS = (RULES, METHODS, SCHEDULES)
NAMED = [(catalog, name, one) for catalog in CATALOGS for name, entry in catalog.items() for one in entry.parameters]


@pytest.mark.parametrize(("catalog", "name", "one"), NAMED, ids=lambda value: getattr(value, "name", None))
def test_each_parameter_is_accepted_at_its_bounds_and_refused_beyond(
    catalog: Catalog[Entry], name: str, one: Parameter
):
    bounds = bounds_of(one)
    whole = isinstance(bounds.least, int) and "whole" in one.kind.allowed
    step = 1 if whole else 1e-6
    for value in inside(bounds, step):
        assert catalog.read(f"{name}:{one.name}={spelled(value)}")[1][one.name] == (
            value if math.isfinite(value) else 1e300
        )
    for value in beyond(bounds, step if whole else max(step, abs(bounds.most) * 1e-9) if bounds.most < 1e300 else step):
        with pytest.raises(ValueError) as refusal:
            catalog.read(f"{name}:{one.name}={spelled(value)}")
        assert one.name in str(refusal.value)
        assert one.kind.allowed in str(refusal.value)


BY_PLACE = [(name, place) for name, entry in STALENESS.items() for place in range(len(entry.parameters))]


@pytest.mark.parametrize(("name", "place"), BY_PLACE)
def test_each_parameter_by_its_place_is_accepted_at_its_bounds_and_refused_beyond(name, place):
    entry = STALENESS[name]
    bounds = bounds_of(entry.parameters[place])
    usual = [inside(bounds_of(one), 1e-6)[0] for one in entry.parameters]

    def written(value: float) -> str:
        return ",".join(repr(value if index == place else other) for index, other in enumerate(usual))

    for value in inside(bounds, 1e-6):
        assert STALENESS.read_by_place(f"{name}:{written(value)}")[1][place] == value
    for value in (*beyond(bounds, 1e-6), math.nan, math.inf):
        with pytest.raises(ValueError, match=entry.parameters[place].name):
            STALENESS.read_by_place(f"{name}:{written(value)}")


@pytest.mark.parametrize("catalog", [*CATALOGS, STAGES, STALENESS], ids=lambda catalog: catalog.what)
def test_an_entry_says_what_it_means_and_no_alias_is_said_twice(catalog):
    aliases = [alias for entry in catalog.values() for alias in entry.hints]
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(catalog) - {"none"}
    for entry in catalog.values():
        assert entry.means
        assert all(one.means for one in entry.parameters)
