"""Names for what the agent sees and does."""

from sb3_nser.vocabulary.automatic import automatic_vocabulary
from sb3_nser.vocabulary.blackjack import blackjack_vocabulary
from sb3_nser.vocabulary.chosen import vocabulary_of
from sb3_nser.vocabulary.classic import (
    acrobot_vocabulary,
    cartpole_vocabulary,
    mountain_car_continuous_vocabulary,
    mountain_car_vocabulary,
    pendulum_vocabulary,
)
from sb3_nser.vocabulary.describe import describe
from sb3_nser.vocabulary.env_id import env_id_of
from sb3_nser.vocabulary.features import BOOLEAN_VALUES, ActionSet, Feature, Kind, ObjectSet, Vocabulary
from sb3_nser.vocabulary.grids import cliff_walking_vocabulary, frozen_lake_vocabulary
from sb3_nser.vocabulary.highway import highway_vocabulary
from sb3_nser.vocabulary.lander import lunar_lander_vocabulary
from sb3_nser.vocabulary.minigrid import minigrid_vocabulary
from sb3_nser.vocabulary.mujoco import ROBOTS, robot_vocabulary
from sb3_nser.vocabulary.mujoco_arms import (
    inverted_double_pendulum_vocabulary,
    inverted_pendulum_vocabulary,
    pusher_vocabulary,
    reacher_vocabulary,
)
from sb3_nser.vocabulary.parking import parking_vocabulary
from sb3_nser.vocabulary.registry import register_vocabulary, registered, vocabulary_for
from sb3_nser.vocabulary.taxi import taxi_vocabulary

register_vocabulary("generic", automatic_vocabulary)
register_vocabulary("cartpole", cartpole_vocabulary, ["CartPole-v*"])
register_vocabulary("mountain_car", mountain_car_vocabulary, ["MountainCar-v*"])
register_vocabulary("mountain_car_continuous", mountain_car_continuous_vocabulary, ["MountainCarContinuous-v*"])
register_vocabulary("acrobot", acrobot_vocabulary, ["Acrobot-v*"])
register_vocabulary("pendulum", pendulum_vocabulary, ["Pendulum-v*"])
register_vocabulary("lunar_lander", lunar_lander_vocabulary, ["LunarLander-v*", "LunarLanderContinuous-v*"])
register_vocabulary("frozen_lake", frozen_lake_vocabulary, ["FrozenLake-v*", "FrozenLake8x8-v*"], attributes=["desc"])
register_vocabulary("cliff_walking", cliff_walking_vocabulary, ["CliffWalking-v*", "CliffWalkingSlippery-v*"])
register_vocabulary("taxi", taxi_vocabulary, ["Taxi-v*"])
register_vocabulary("blackjack", blackjack_vocabulary, ["Blackjack-v*"])
register_vocabulary("mujoco_robot", robot_vocabulary, [f"{robot}-v*" for robot in ROBOTS])
register_vocabulary("inverted_pendulum", inverted_pendulum_vocabulary, ["InvertedPendulum-v*"])
register_vocabulary("inverted_double_pendulum", inverted_double_pendulum_vocabulary, ["InvertedDoublePendulum-v*"])
register_vocabulary("reacher", reacher_vocabulary, ["Reacher-v*"])
register_vocabulary("pusher", pusher_vocabulary, ["Pusher-v*"])
register_vocabulary(
    "highway",
    highway_vocabulary,
    ["highway-v*", "highway-fast-v*", "merge-v*", "merge-generic-v*", "exit-v*", "roundabout-*", "intersection-v*"],
    attributes=["config"],
)
register_vocabulary("parking", parking_vocabulary, ["parking-*"], attributes=["config"])
register_vocabulary("minigrid", minigrid_vocabulary, ["MiniGrid-*", "BabyAI-*"])

__all__ = [
    "BOOLEAN_VALUES",
    "ActionSet",
    "Feature",
    "Kind",
    "ObjectSet",
    "Vocabulary",
    "automatic_vocabulary",
    "describe",
    "env_id_of",
    "frozen_lake_vocabulary",
    "minigrid_vocabulary",
    "register_vocabulary",
    "registered",
    "vocabulary_for",
    "vocabulary_of",
]
