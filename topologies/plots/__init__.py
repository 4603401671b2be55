"""Pictures of graphs, drawn with matplotlib: one graph in three panels, or a map of many."""
