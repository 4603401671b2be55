"""The rules for people: what each does, what b means in it, what is proven, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.config.rule import parse_rule

KRUM_BOUND = "kappa = 6 (1 + b/(n-2b))"
MEDIAN_BOUND = "kappa = 4 (1 + b/(n-2b))^2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One rule for people; n = m + 1 counts the node's own model and those of m neighbors."""

    name: str
    """The rule's name, with a placeholder for another rule: `nnm+RULE`."""
    does: str
    b_means: str
    bound: str
    """A bound on kappa: the squared error is at most kappa times the variance of the honest models."""
    cost: str
    weights: bool
    """The neighbors' weights count, staleness with them."""
    example: str
    source: str


DESCRIPTIONS = (
    Description(
        name="trimmed-mean",
        does="of each coordinate, the mean without the b lowest and the b highest of n values",
        b_means="values cut off at each end of a coordinate",
        bound="kappa = 6b/(n-2b) (1 + b/(n-2b))",
        cost="a sort of each coordinate",
        weights=False,
        example="trimmed-mean:b=1",
        source="Yin et al. 2018, arXiv 1803.01498",
    ),
    Description(
        name="median",
        does="of each coordinate, the median of n values",
        b_means="only from how many neighbors on it mixes",
        bound=MEDIAN_BOUND,
        cost="a sort of each coordinate",
        weights=False,
        example="median:b=1",
        source="Yin et al. 2018, arXiv 1803.01498",
    ),
    Description(
        name="geometric-median",
        does="the point of least summed distance to the n models",
        b_means="only from how many neighbors on it mixes",
        bound=MEDIAN_BOUND,
        cost="all distances, one mean",
        weights=False,
        example="geometric-median:b=1",
        source="Pillutla et al. 2022, arXiv 1912.13445",
    ),
    Description(
        name="krum",
        does="the one of n models with the least sum of squared distances to its n-b-1 nearest",
        b_means="models that a score leaves out",
        bound=KRUM_BOUND,
        cost="all distances",
        weights=False,
        example="krum:b=1",
        source="Blanchard et al. 2017, arXiv 1703.02757",
    ),
    Description(
        name="multi-krum",
        does="the mean of the n-b models of least such sum",
        b_means="models that a score, and then the mean, leaves out",
        bound=KRUM_BOUND,
        cost="all distances, one mean",
        weights=False,
        example="multi-krum:b=1",
        source="Blanchard et al. 2017, arXiv 1703.02757",
    ),
    Description(
        name="bulyan",
        does="Krum chooses n-2b models; of each coordinate, the mean of the n-4b values nearest their median",
        b_means="malicious models that Krum may choose, and values cut off at each end",
        bound="within the range of the honest, or its width beyond",
        cost="all distances, a sort of each coordinate",
        weights=False,
        example="bulyan:b=1",
        source="El Mhamdi et al. 2018, arXiv 1802.07927",
    ),
    Description(
        name="nnm+RULE",
        does="each of n models becomes the mean of its n-b nearest, then one of the rules above",
        b_means="models that each mean leaves out, and as in the rule",
        bound="kappa = 8b/(n-b) (1 + kappa of the rule)",
        cost="all distances, and the rule",
        weights=False,
        example="nnm+trimmed-mean:b=1",
        source="Allouah et al. 2023, arXiv 2302.01772",
    ),
    Description(
        name="hampel",
        does="as cs+, but pulls of outliers fade, and each coordinate of a pull is clipped",
        b_means="2b pulls are clipped, b may fade, and b values of each coordinate may be clipped",
        bound="no malicious pull is longer than an honest one, or `cut` times (twice) that in a coordinate; "
        "the squared error of the sum of pulls is at most 9b times the honest pulls' squares",
        cost="all distances, a sort of each coordinate, one mean",
        weights=False,
        example="hampel:b=1",
        source="docs/decisions/0015-a-default-rule.md",
    ),
    Description(
        name="cs+",
        does="each neighbor's pull, no longer than the (m-2b)-th shortest",
        b_means="2b pulls are clipped",
        bound="with equal weights, the squared error of the sum of pulls is at most 2b times the honest pulls' squares",
        cost="distances from the own model, one mean",
        weights=True,
        example="cs+:b=1",
        source="Gaucher, Dieuleveut, Hendrikx 2025, arXiv 2410.10418",
    ),
    Description(
        name="scc",
        does="each neighbor's pull, no longer than tau; without tau, a radius from the m-b nearest",
        b_means="neighbors that the radius leaves out; nothing where tau is given",
        bound="without tau the error is at most 9/4 the root of (b largest weights x weighted honest squares)",
        cost="distances from the own model, one mean",
        weights=True,
        example="scc:b=1",
        source="He, Karimireddy, Jaggi 2022, arXiv 2202.01545",
    ),
    Description(
        name="monna",
        does="the mean of the own model and the m-b nearest to it (NNA)",
        b_means="neighbors left out",
        bound="the error is at most 2b/(n-b) times the farthest honest model's distance",
        cost="distances from the own model, one mean",
        weights=False,
        example="monna:b=1",
        source="Farhadkhani et al. 2023, arXiv 2209.10931",
    ),
    Description(
        name="centered-clipping",
        does="from the own model, `steps` times to the mean of all n, each no farther than tau; without tau as scc",
        b_means="models that the radius leaves out; nothing where tau is given",
        bound="with tau, no lies move it farther than steps x tau",
        cost="all distances, one mean",
        weights=False,
        example="centered-clipping:b=1",
        source="Karimireddy, He, Jaggi 2021, arXiv 2012.10333",
    ),
    Description(
        name="balance",
        does="alpha own + (1-alpha) mean of neighbors within gamma exp(-kappa x rounds done) of the own length",
        b_means="only from how many neighbors on it mixes",
        bound="no lies move it farther than (1-alpha) gamma of the own length",
        cost="distances from the own model, one mean",
        weights=False,
        example="balance:b=1",
        source="Fang et al. 2024, arXiv 2406.10416",
    ),
)

MEAN = Description(
    name="mean",
    does="own + sum of weight x (neighbor - own), exchanged so that the sum over both ends stays",
    b_means="no malicious neighbor is tolerated",
    bound="none: one malicious neighbor can make it anything",
    cost="nothing beyond the exchanges",
    weights=True,
    example="mean",
    source="Xiao, Boyd 2004",
)
OWN = Description(
    name="module:object",
    does="a rule of your own",
    b_means="passed to it as f, if it is a class",
    bound="not known",
    cost="a copy of all models, and the rule",
    weights=False,
    example="file.py:object,b=1",
    source="-",
)


def of(spec: str) -> Description:
    """The description of the rule of a valid spec."""
    parsed = parse_rule(spec)
    name = f"{parsed.before}+RULE" if parsed.before else parsed.name
    return {one.name: one for one in (MEAN, *DESCRIPTIONS)}.get(name, OWN)
