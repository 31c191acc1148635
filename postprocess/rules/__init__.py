"""Verdict and summary: small pure functions over finished tables."""
