"""Tasks made of what people already have: a Flower client, a scikit-learn estimator.

    from p2pfl.adapt import sklearn

    task = sklearn.task(SGDClassifier(loss="log_loss"), data)

Each module needs an extra of its own, which it names if it is missing. What they have in common is here: arrays as one
vector, and steps of code that shows no gradient. Nothing here imports torch.
"""
