"""How property tests choose their examples.

`make test` takes the same ones each time, so that what passes here passes elsewhere. `make properties` draws new ones;
what it finds becomes an ``@example`` or a test of its own.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile("same")
