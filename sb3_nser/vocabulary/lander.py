"""The vocabulary of LunarLander, with discrete engines or with throttles."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from gymnasium import spaces

from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import box_actions, check_box, column, discrete_actions, flag, number

ACTIONS = ("do_nothing", "fire_left_engine", "fire_main_engine", "fire_right_engine")
"""The four discrete actions in index order."""

THROTTLES = ("main_engine", "side_engine")
"""The two continuous actions in index order, each in -1..1."""

# One unit of the observation in metres, m/s, rad/s: the screen is 20 m wide and 13.33 m high, and one second has 50 steps.
_X, _Y, _X_VELOCITY, _Y_VELOCITY, _TURN = 10.0, 20.0 / 3.0, 5.0, 7.5, 2.5

_TASK = (
    "Land the craft gently and upright on the pad at x 0, height 0. Coming closer, slowing down, standing upright and legs on "
    "the ground are rewarded, engine use costs a little; coming to rest gives 100, a crash or flying off to the side "
    "(beyond 10 m) costs 100 and ends the episode. "
)
_DISCRETE = (
    "The main engine pushes the craft up along its own axis, the left engine pushes it left and turns it counter-clockwise, "
    "the right engine pushes it right and turns it clockwise."
)
_CONTINUOUS = (
    "main_engine is off below 0 and gives 50 to 100 % thrust from 0 to 1; side_engine below -0.5 pushes left and "
    "turns counter-clockwise, above 0.5 pushes right and turns clockwise, and does nothing between."
)


def lunar_lander_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    LunarLander: position and speed in metres (Box2D's units), lean, and the two legs.

    :param observation_space: the task's own Box of 8 numbers
    :param action_space: Discrete(4), or a Box of two throttles
    :param env_id: not used
    :return: a vocabulary with named engines or throttles
    :raises UnsupportedError: if the spaces are others
    """
    check_box("LunarLander", observation_space, (8,))
    continuous = isinstance(action_space, spaces.Box)
    if continuous:
        actions = box_actions("LunarLander", action_space, THROTTLES)
    else:
        actions = discrete_actions("LunarLander", action_space, ACTIONS)
    return Vocabulary(
        name="lunar_lander",
        task=_TASK + (_CONTINUOUS if continuous else _DISCRETE),
        features=(
            number("vertical_velocity", 3, "vertical velocity: negative falls, positive climbs", "m/s", None, _Y_VELOCITY),
            number("lean", 4, "lean of the craft: 0 is upright, positive leans left", "rad", math.pi),
            number("x_velocity", 2, "horizontal velocity, positive is to the right", "m/s", None, _X_VELOCITY),
            number("x", 0, "how far right of the pad's middle the craft is, negative is left", "m", 10.0, _X),
            Feature("height", "number", "height above standing on the pad", partial(column, 1, scale=_Y), "m", 0.0, 10.0),
            number("lean_velocity", 5, "how fast the craft turns, positive is counter-clockwise", "rad/s", None, _TURN),
            # the first leg is hinged on the right side, whatever it is often called
            flag("left_leg_down", 7, "yes if the left leg touches the ground"),
            flag("right_leg_down", 6, "yes if the right leg touches the ground"),
        ),
        actions=actions,
    )
