"""The same thing on several hosts: collectives, steps and programs across ranks."""
