"""One question per file: partial(profile) -> table, merge(a, b), finish(table). Merges are exact and associative."""
