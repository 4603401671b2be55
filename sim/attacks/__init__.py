"""What liars do: pure functions, for the simulator and for real liar processes alike; no node imports this.

`parse_attack("alie:1.5")` gives an `Attack`; what a liar sees is a `Sight`; `REGISTRY` has every form with its source.
"""

from sim.attacks.attack import Attack, Poison
from sim.attacks.flooding import press
from sim.attacks.parse import ALLOWED_ATTACKS, parse_attack
from sim.attacks.registry import REGISTRY, Form
from sim.attacks.sight import BOAST, Sight

__all__ = ["ALLOWED_ATTACKS", "BOAST", "REGISTRY", "Attack", "Form", "Poison", "Sight", "parse_attack", "press"]
