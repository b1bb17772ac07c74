"""The vocabulary of Taxi: the number of the state taken apart into what a driver would see."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import check_states, discrete_actions, of_state, state_numbers

ACTIONS = ("move_south", "move_north", "move_east", "move_west", "pickup", "dropoff")
"""Taxi's six actions in index order."""

STOPS = {"red": (0, 0), "green": (0, 4), "yellow": (4, 0), "blue": (4, 3)}
"""Row and column of the four places where passengers wait and go, in code order."""

_WALLS_EAST = ((0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2))
"""Cells with a wall between them and their eastern neighbour."""


def taxi_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Taxi: where the taxi is, where the passenger is and wants to go, what a driver has to do next, and the walls.

    :param observation_space: Discrete(500)
    :param action_space: Discrete(6)
    :param env_id: not used
    :raises UnsupportedError: if the spaces are others
    """
    check_states("Taxi", observation_space, 500)
    actions = discrete_actions("Taxi", action_space, ACTIONS)
    task = (
        "Drive the taxi through a town of 5 rows and 5 columns with some walls: pick up the passenger, drive to the "
        "destination, and drop the passenger off there, which gives 20 and ends the episode. Every step costs 1; pickup or "
        "dropoff where it is not possible costs 10."
    )
    return Vocabulary("taxi", task, _features(), actions, state_numbers)


def _features() -> tuple[Feature, ...]:
    # state = ((row * 5 + column) * 5 + passenger) * 4 + destination
    row, column, passenger, destination = np.unravel_index(np.arange(500), (5, 5, 5, 4))
    places = np.array(list(STOPS.values()))
    riding = passenger == 4
    taxi = np.stack([row, column], 1)
    waiting_at = places[np.minimum(passenger, 3)]
    going_to = places[destination]
    target = np.where(riding[:, None], going_to, waiting_at)
    at_passenger = ~riding & (taxi == waiting_at).all(1)
    at_destination = (taxi == going_to).all(1)
    east = np.ones((5, 5), bool)
    for wall in _WALLS_EAST:
        east[wall] = False
    east[:, 4] = False
    west = np.zeros_like(east)
    west[:, 1:] = east[:, :4]
    stops = tuple(STOPS)
    return (
        of_state(riding, "passenger_in_taxi", "yes if the passenger has been picked up"),
        of_state(at_destination, "at_destination", "yes if the taxi stands at the destination"),
        of_state(at_passenger, "at_passenger", "yes if the taxi stands where the passenger waits"),
        of_state(target[:, 0] - row, "target_south",
                 "rows south to the next target (waiting passenger, else destination), negative if north"),
        of_state(target[:, 1] - column, "target_east", "columns east to the next target, negative if west"),
        of_state(passenger, "passenger", "where the passenger is: at one of the four stops, or in the taxi", (*stops, "taxi")),
        of_state(destination, "destination", "the stop to which the passenger wants to go", stops),
        of_state(row < 4, "south_free", "yes if the taxi can move south"),
        of_state(row > 0, "north_free", "yes if the taxi can move north"),
        of_state(east[row, column], "east_free", "yes if neither wall nor edge stops a move east"),
        of_state(west[row, column], "west_free", "yes if neither wall nor edge stops a move west"),
        of_state(row, "row", "row of the taxi, 0 is the north edge"),
        of_state(column, "column", "column of the taxi, 0 is the west edge"),
    )  # fmt: skip
