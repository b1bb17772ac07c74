"""``sb3-nser vocabulary``: what a language model would see, and one sentence where it would see nothing."""

import json

import pytest

from sb3_nser import vocabulary as voc
from sb3_nser.cli import main


def run(capsys, *arguments):
    status = main(["vocabulary", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_it_shows_what_a_model_would_see(capsys):
    status, out, err = run(capsys, "FrozenLake-v1")
    assert status == 0 and err == ""
    vocabulary = voc.frozen_lake_vocabulary(*_spaces("FrozenLake-v1"), "FrozenLake-v1")
    assert voc.describe(vocabulary) in out and "'frozen_lake'" in out
    assert "- right_cell (frozen | hole | goal | edge):" in out


def _spaces(env_id):
    import gymnasium as gym

    env = gym.make(env_id)
    return env.observation_space, env.action_space


def test_json_says_the_same(capsys):
    status, out, _ = run(capsys, "Pendulum-v1", "--json")
    said = json.loads(out)
    assert status == 0 and said["vocabulary"] == "pendulum" and said["environment"] == "Pendulum-v1"
    assert said["actions"] == {"names": ["torque"], "low": [-2.0], "high": [2.0], "units": ["N·m"]}
    velocity = said["features"][1]
    assert velocity["name"] == "angular_velocity" and velocity["unit"] == "rad/s" and velocity["high"] == 8.0


@pytest.mark.parametrize("env_id", ["MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToRedBall-v0"])
def test_packages_are_imported_for_their_ids(capsys, env_id):
    status, out, _ = run(capsys, env_id)
    assert status == 0 and "front_object" in out


def test_a_range_begins_at_0_not_at_minus_0():
    feature = voc.Feature("gap", "number", "a gap", lambda now, later: now[:, 0], low=-0.0, high=5.0)
    vocabulary = voc.Vocabulary("gap", "Keep the gap.", (feature,), voc.ActionSet(("go", "stay")))
    assert "- gap (number 0..5): a gap" in voc.describe(vocabulary)


def test_another_vocabulary_by_name(capsys):
    status, out, _ = run(capsys, "CartPole-v1", "--vocabulary", "generic")
    assert status == 0 and "- obs_2 (number -0.4189..0.4189)" in out
    status, out, err = run(capsys, "CartPole-v1", "--vocabulary", "cartpol")
    assert status == 1 and out == "" and "Did you mean 'cartpole'?" in err and len(err.splitlines()) == 1


def test_the_list(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    for name in voc.registered():
        assert any(line.startswith(name) for line in out.splitlines())
    known = json.loads(run(capsys, "--json")[1])
    assert known["taxi"] == ["Taxi-v*"] and known["generic"] == []


@pytest.mark.parametrize(
    "env_id, says",
    [
        ("Cartpole-v1", "Did you mean 'CartPole-v1'?"),
        ("CartPole-v9", "CartPole-v1"),
        ("cartpole", "is a vocabulary"),
        ("no_such_module:Tank-v0", "no_such_module"),
        ("Quite/Unheard-v0", "no environment is registered"),
        ("", "could not be made"),
        ("x" * 500, "no environment is registered"),
        ("Blackjack-v1", "FlattenObservation"),
    ],
)
def test_everything_else_is_one_sentence(capsys, env_id, says):
    status, out, err = run(capsys, env_id)
    assert status == 1 and out == "" and says in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err and len(err) < 700


def test_a_module_of_the_users_registers_both(capsys, tmp_path, monkeypatch):
    (tmp_path / "tank_of_mine.py").write_text(
        "import gymnasium as gym\n"
        "import numpy as np\n"
        "from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary, register_vocabulary\n"
        "class Tank(gym.Env):\n"
        "    observation_space = gym.spaces.Box(0, 1, (1,))\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "gym.register('TankOfMine-v0', Tank)\n"
        "def build(observation_space, action_space, env_id):\n"
        "    level = Feature('level', 'number', 'height of the water', lambda now, later: now[:, 0], unit='m')\n"
        "    return Vocabulary('tank', 'Keep the level.', (level,), ActionSet(('close', 'open')))\n"
        "register_vocabulary('tank_of_mine', build, ['TankOfMine-v*'])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out, err = run(capsys, "tank_of_mine:TankOfMine-v0")
    assert status == 0, err
    assert "- level (number m): height of the water" in out
