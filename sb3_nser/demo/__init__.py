"""The main job as one command: two environments, a real language model, rules that reweight replay, everything on disk."""

from sb3_nser.demo.command import add_demo_arguments, run_demo

__all__ = ["add_demo_arguments", "run_demo"]
