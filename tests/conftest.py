"""Settings for all tests."""

from hypothesis import settings

# A shared machine can be slow for a moment, and that is not a failure.
settings.register_profile("fedlada", deadline=None)
settings.load_profile("fedlada")
