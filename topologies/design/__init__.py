"""The search for a graph: by a goal, or by adding edges to a given graph."""
