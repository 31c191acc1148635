"""Tiny text traces with answers worked out by hand: the independent truth of the breakdown."""
