"""Clocks of hosts: bounds from probes and collectives, the curve that fits them, and its certified error."""
