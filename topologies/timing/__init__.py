"""How long consensus takes on a graph whose sites are far from each other: `distances`, and what follows in `pace`."""
