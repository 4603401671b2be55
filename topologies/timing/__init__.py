"""How long consensus takes on a graph whose sites are far from each other: `latencies`, and what follows in `pace`."""
