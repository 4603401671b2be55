"""What holds for all tests."""

from hypothesis import settings

# No test asserts a time, examples of a property included.
settings.register_profile("timeless", parent=settings.default)
settings.load_profile("timeless")
