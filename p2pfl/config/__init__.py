"""Files to frozen values: the settings of a federation and a node, checked once, at the edge."""
