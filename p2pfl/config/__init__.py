"""Turn files into frozen values: the settings of a federation and of a node, checked once, at the edge."""
