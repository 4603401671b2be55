"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# No test asserts a time: examples of a property have no deadline, and may be slow to come by.
settings.register_profile(
    "timeless", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("timeless")
