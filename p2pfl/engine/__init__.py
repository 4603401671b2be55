"""The vectors of a node: models, replicas and flows, and the changes that exchanges and rounds make to them."""
