"""Launches to runs and ops to steps; windows; gaps."""

from xprof_py.postprocess.join.joined import join_profile

__all__ = ["join_profile"]
