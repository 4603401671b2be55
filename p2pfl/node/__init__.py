"""A node as a process: core, engine, learner, network and features put together."""
