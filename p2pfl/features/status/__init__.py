"""What is shown of a node: rows that members tell each other, the page, `watch`, and a look for what no part sees.

For eyes only: nothing that is decided depends on it, and a failure here costs the node nothing but the sight.
"""
