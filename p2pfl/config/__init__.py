"""Files to frozen values: what a federation and a node are told, checked once, at the edge."""
