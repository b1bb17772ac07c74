"""Neuro-symbolic experience replay for Stable-Baselines3."""

__version__ = "0.1.0"
