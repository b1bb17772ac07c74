"""Hand-written right and wrong rules per environment: what ``python -m sb3_nser.bench rules`` judges.

A rule is right if its action does better, in the states of its body, than what a half-skilled player does there otherwise.
Wrong ones are the right ones with the action swapped, and others that read well. FrozenLake's and Taxi's labels are tested
against exact values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleProblem:
    """
    :param env_id: Gymnasium id
    :param developed: whether the judging was improved while looking at this environment; the others were kept aside
    :param right: rules that should be admitted
    :param wrong: rules that should not be
    """

    env_id: str
    developed: bool
    right: tuple[str, ...]
    wrong: tuple[str, ...]


CARTPOLE = RuleProblem(
    "CartPole-v1",
    True,
    right=(
        "IF pole_angular_velocity > 0.3 THEN push_right",
        "IF pole_angular_velocity < -0.3 THEN push_left",
        "IF pole_angle > 0.03 AND pole_angular_velocity > 0 THEN push_right",
        "IF pole_angle < -0.03 AND pole_angular_velocity < 0 THEN push_left",
        "IF pole_angle > 0.08 THEN push_right",
        "IF pole_angle < -0.08 THEN push_left",
        "IF pole_angular_velocity > 0.6 THEN avoid push_left",
        "IF pole_angle < 0 AND pole_angular_velocity < -0.2 THEN avoid push_right",
    ),
    wrong=(
        "IF pole_angular_velocity > 0.3 THEN push_left",
        "IF pole_angular_velocity < -0.3 THEN push_right",
        "IF pole_angle > 0.03 AND pole_angular_velocity > 0 THEN push_left",
        "IF pole_angle < -0.03 AND pole_angular_velocity < 0 THEN push_right",
        "IF pole_angle > 0.08 THEN push_left",
        "IF pole_angle < -0.08 THEN push_right",
        "IF pole_angular_velocity > 0.6 THEN avoid push_right",
        "IF cart_velocity > 0.7 THEN push_right",
        "IF cart_velocity < -0.7 THEN push_left",
        "IF cart_position < 2.4 THEN push_right",
    ),
)

MOUNTAIN_CAR = RuleProblem(
    "MountainCar-v0",
    True,
    right=(
        "IF velocity > 0.005 THEN push_right",
        "IF velocity < -0.005 THEN push_left",
        "IF position < -0.6 AND velocity > 0 THEN push_right",
        "IF position > -0.4 AND velocity > 0.02 THEN push_right",
        "IF position > -0.4 AND velocity < 0 THEN push_left",
        "IF velocity > 0.01 THEN avoid push_left",
        "IF velocity < -0.01 THEN avoid push_right",
    ),
    wrong=(
        "IF velocity > 0.005 THEN push_left",
        "IF velocity < -0.005 THEN push_right",
        "IF position < -0.6 AND velocity > 0 THEN push_left",
        "IF position > -0.4 AND velocity > 0.02 THEN push_left",
        "IF position > -0.4 AND velocity < 0 THEN push_right",
        "IF velocity > 0.01 THEN avoid push_right",
        "IF velocity > 0.01 THEN no_push",
        "IF position < 0.5 THEN push_right",
    ),
)

LUNAR_LANDER = RuleProblem(
    "LunarLander-v3",
    True,
    right=(
        "IF lean > 0.2 THEN fire_right_engine",
        "IF lean < -0.2 THEN fire_left_engine",
        "IF lean_velocity > 0.5 THEN fire_right_engine",
        "IF lean_velocity < -0.5 THEN fire_left_engine",
        "IF height < 3 AND vertical_velocity < -3 THEN fire_main_engine",
        "IF left_leg_down is yes AND right_leg_down is yes THEN do_nothing",
        "IF lean > 0.2 AND lean_velocity > 0 THEN avoid fire_left_engine",
        "IF lean < -0.2 AND lean_velocity < 0 THEN avoid fire_right_engine",
    ),
    wrong=(
        "IF lean > 0.2 THEN fire_left_engine",
        "IF lean < -0.2 THEN fire_right_engine",
        "IF lean_velocity > 0.5 THEN fire_left_engine",
        "IF lean_velocity < -0.5 THEN fire_right_engine",
        "IF height < 3 AND vertical_velocity < -3 THEN do_nothing",
        "IF left_leg_down is yes AND right_leg_down is yes THEN fire_main_engine",
        "IF lean > 0.2 AND lean_velocity > 0 THEN avoid fire_right_engine",
        "IF vertical_velocity > 1 THEN fire_main_engine",
        "IF height > 0 THEN fire_main_engine",
    ),
)

FROZEN_LAKE = RuleProblem(
    "FrozenLake-v1",
    True,
    right=(
        "IF right_cell is hole AND left_cell is not hole THEN move_left",
        "IF left_cell is hole AND right_cell is not hole THEN move_right",
        "IF down_cell is hole THEN move_up",
        "IF up_cell is hole AND down_cell is frozen THEN move_down",
        "IF right_cell is goal THEN move_down",
        "IF down_cell is hole THEN avoid move_left",
        "IF left_cell is hole AND right_cell is not hole THEN avoid move_left",
    ),
    wrong=(
        "IF right_cell is hole AND left_cell is not hole THEN move_right",
        "IF left_cell is hole AND right_cell is not hole THEN move_left",
        "IF down_cell is hole THEN move_down",
        "IF up_cell is hole AND down_cell is frozen THEN move_up",
        "IF right_cell is goal THEN move_left",
        "IF down_cell is hole THEN avoid move_up",
        "IF right_cell is hole AND left_cell is not hole THEN avoid move_left",
        "IF down_cell is hole THEN move_right",
    ),
)

TAXI = RuleProblem(
    "Taxi-v4",
    True,
    right=(
        "IF at_passenger is yes THEN pickup",
        "IF passenger_in_taxi is yes AND at_destination is yes THEN dropoff",
        "IF target_south > 0 AND south_free is yes THEN move_south",
        "IF target_south < 0 AND north_free is yes THEN move_north",
        "IF target_east > 0 AND east_free is yes THEN move_east",
        "IF target_east < 0 AND west_free is yes THEN move_west",
        "IF at_passenger is no THEN avoid pickup",
        "IF passenger_in_taxi is no THEN avoid dropoff",
    ),
    wrong=(
        "IF at_passenger is yes THEN dropoff",
        "IF passenger_in_taxi is yes AND at_destination is yes THEN pickup",
        "IF target_south > 0 AND south_free is yes THEN move_north",
        "IF target_south < 0 AND north_free is yes THEN move_south",
        "IF target_east > 0 AND east_free is yes THEN move_west",
        "IF target_east < 0 AND west_free is yes THEN move_east",
        "IF passenger_in_taxi is yes AND at_destination is no THEN dropoff",
        "IF passenger_in_taxi is no AND at_passenger is no THEN pickup",
        "IF at_passenger is yes THEN avoid pickup",
    ),
)

DOOR_KEY = RuleProblem(
    "MiniGrid-DoorKey-5x5-v0",
    True,
    right=(
        "IF front_object is key AND carrying is nothing THEN pickup",
        "IF front_object is locked_door AND carrying is key THEN toggle",
        "IF front_object is goal THEN forward",
        "IF front_object is open_door AND goal_visible is yes THEN forward",
        "IF key_direction is ahead AND carrying is nothing AND front_object is empty THEN forward",
        "IF goal_direction is ahead AND front_object is empty THEN forward",
        "IF front_object is wall THEN avoid forward",
        "IF front_object is open_door THEN avoid toggle",
    ),
    wrong=(
        "IF front_object is key AND carrying is nothing THEN toggle",
        "IF front_object is locked_door AND carrying is key THEN pickup",
        "IF front_object is goal THEN turn_left",
        "IF front_object is open_door THEN toggle",
        "IF key_direction is ahead AND carrying is nothing AND front_object is empty THEN turn_right",
        "IF goal_direction is ahead AND front_object is empty THEN turn_left",
        "IF front_object is wall THEN forward",
        "IF carrying is key AND front_object is empty THEN drop",
        "IF front_object is goal THEN done",
        "IF front_object is key AND carrying is nothing THEN avoid pickup",
    ),
)

CLIFF_WALKING = RuleProblem(
    "CliffWalking-v1",
    False,
    right=(
        "IF down_cell is cliff THEN move_right",
        "IF right_cell is cliff THEN move_up",
        "IF down_cell is goal THEN move_down",
        "IF down_cell is cliff THEN avoid move_down",
        "IF right_cell is cliff THEN avoid move_right",
        "IF goal_right > 0 AND right_cell is ground THEN move_right",
    ),
    wrong=(
        "IF down_cell is cliff THEN move_down",
        "IF right_cell is cliff THEN move_right",
        "IF down_cell is goal THEN move_up",
        "IF down_cell is cliff THEN avoid move_right",
        "IF down_cell is cliff THEN move_left",
        "IF goal_right > 0 AND right_cell is ground THEN move_left",
        "IF goal_down > 0 AND goal_right > 3 THEN move_down",
    ),
)

EMPTY = RuleProblem(
    "MiniGrid-Empty-6x6-v0",
    False,
    right=(
        "IF front_object is goal THEN forward",
        "IF goal_direction is left THEN turn_left",
        "IF goal_direction is right THEN turn_right",
        "IF goal_direction is ahead AND front_object is empty THEN forward",
        "IF front_object is wall THEN avoid forward",
        "IF front_object is goal THEN avoid turn_left",
    ),
    wrong=(
        "IF front_object is goal THEN turn_left",
        "IF goal_direction is left THEN turn_right",
        "IF goal_direction is right THEN turn_left",
        "IF goal_direction is ahead AND front_object is empty THEN turn_right",
        "IF front_object is wall THEN forward",
        "IF front_object is goal THEN avoid forward",
        "IF front_object is goal THEN done",
    ),
)

PROBLEMS = {
    one.env_id: one for one in (CARTPOLE, MOUNTAIN_CAR, LUNAR_LANDER, FROZEN_LAKE, TAXI, DOOR_KEY, CLIFF_WALKING, EMPTY)
}
