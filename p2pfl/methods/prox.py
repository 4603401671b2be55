"""`prox:mu=0.01`: each step is also pulled back to where its round began. FedProx, Li et al., arXiv 1812.06127."""

from __future__ import annotations

from p2pfl.methods.method import METHODS, Array, Method, Vectors
from p2pfl.specs import Entry, Parameter, number


@METHODS.add(
    Entry(
        name="prox",
        aliases=("fedprox",),
        means="each step is also pulled back toward the model that its round began with",
        parameters=(Parameter("mu", number(0, 1e30), "how strongly a step is pulled back"),),
        source="FedProx: Li et al., arXiv 1812.06127",
    )
)
class Prox(Method):
    """The method whose steps follow the gradient of F(w) + mu/2 |w - anchor|^2."""

    def __init__(self, mu: float = 0.01) -> None:
        self.mu = mu

    def gradient(self, g: Array, w: Array, start: Vectors) -> Array:
        return g + self.mu * (w - start["anchor"])
