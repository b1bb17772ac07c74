"""Objects that rules quantify over: MiniGrid's objects and cells in view, and the rows of a key of a Dict observation."""

import copy

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from minigrid.core.constants import COLOR_TO_IDX, IDX_TO_COLOR, IDX_TO_OBJECT, OBJECT_TO_IDX

from sb3_nser import NSERReplayBuffer
from sb3_nser import vocabulary as voc
from sb3_nser.errors import ConfigurationError, UnsupportedError
from sb3_nser.logic import RuleBank, scorer
from sb3_nser.rules import parse_rule, problems
from sb3_nser.vocabulary import ActionSet, Feature, ObjectSet, Vocabulary

from .views import DISCRETE, DOWN, FORMS, RIGHT, UP, door_key, observe, stand, vocabulary_of


def things(vocabulary, observation, group="object"):
    """The objects in one observation, each as a dictionary of feature name -> value in words."""
    one = next(item for item in vocabulary.objects if item.name == group)
    names = [f"{group}:", *(f"{group}:{feature.name}" for feature in one.features)]
    values = vocabulary.evaluate(observation[None], None, names)
    found = []
    for place in np.flatnonzero(values[f"{group}:"][0]):
        words = {}
        for feature in one.features:
            value = values[f"{group}:{feature.name}"][0, place].item()
            words[feature.name] = value if feature.kind == "number" else feature.values[int(value)]
        found.append(words)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_objects_of_a_known_room(form):
    env = door_key(form)
    stand(env, 1, 3, UP)
    key = {"kind": "key", "color": "yellow", "state": "none", "distance": 2.0, "side": "ahead"}
    door = {"kind": "door", "color": "yellow", "state": "locked", "distance": 3.0, "side": "right"}
    assert things(vocabulary_of(env), observe(env)) == [key, door]  # the nearest first
    stand(env, 2, 3, RIGHT)
    door = {**door, "distance": 2.0, "side": "ahead"}
    assert things(vocabulary_of(env), observe(env)) == [door]
    stand(env, 3, 2, DOWN)
    door = {**door, "distance": 2.0, "side": "left"}
    assert things(vocabulary_of(env), observe(env)) == [door]
    cells = things(vocabulary_of(env), observe(env), "cell")
    assert {"content": "wall", "distance": 1.0, "side": "left"} in cells
    assert {"content": "door", "distance": 2.0, "side": "left"} in cells
    assert {"content": "empty", "distance": 1.0, "side": "ahead"} in cells


@pytest.mark.parametrize("env_id", ["MiniGrid-ObstructedMaze-1Dlhb-v0", "MiniGrid-LavaCrossingS9N2-v0"])
def test_every_form_says_what_the_image_shows(env_id):
    envs = {name: wrap(gym.make(env_id)) for name, wrap in FORMS.items()}
    inside = envs["raw"].unwrapped
    rng = np.random.default_rng(0)
    for step in range(60):
        if step % 20 == 0:
            envs["raw"].reset(seed=step)
        envs["raw"].step(int(rng.choice([0, 1, 2, 2, 3, 4, 5])))
        base = inside.gen_obs()
        expected = []
        for x in range(7):
            for y in range(7):
                kind, color, state = base["image"][x, y]
                name = IDX_TO_OBJECT[int(kind)]
                if (x, y) == (3, 6) or name in ("unseen", "empty", "wall", "floor"):
                    continue
                side = "left" if x < 3 else "right" if x > 3 else "ahead"
                open_ = ("open", "closed", "locked")[state] if name == "door" else "none"
                words = {"kind": name, "color": IDX_TO_COLOR[int(color)], "distance": float(abs(x - 3) + 6 - y), "side": side}
                expected.append({**words, "state": open_})
        for name, env in envs.items():
            vocabulary = voc.minigrid_vocabulary(env.observation_space, DISCRETE)  # names every kind there is
            got = things(vocabulary, observe(env, copy.copy(base)))
            assert sorted(got, key=str) == sorted(({k: w[k] for k in got[0]} for w in expected), key=str), name


def test_objects_the_task_does_not_have_are_not_there():
    env = FORMS["raw"](gym.make("MiniGrid-Empty-5x5-v0"))
    vocabulary = vocabulary_of(env)
    image = np.zeros((7, 7, 3), np.uint8)
    image[3, 3] = OBJECT_TO_IDX["goal"], COLOR_TO_IDX["green"], 0
    image[2, 3] = OBJECT_TO_IDX["ball"], 0, 0
    assert [item["kind"] for item in things(vocabulary, image)] == ["goal"]
    assert problems(parse_rule("IF exists object (kind is goal AND distance < 3) THEN forward"), vocabulary) == []
    assert "did you mean 'goal'" in problems(parse_rule("IF exists object (kind is gaol) THEN forward"), vocabulary)[0]


def test_a_rule_about_objects_on_minigrid():
    """Stand off: no lava within two cells ahead."""
    env = FORMS["raw"](gym.make("MiniGrid-LavaGapS7-v0"))
    env.reset(seed=0)
    vocabulary = vocabulary_of(env)
    text = "IF exists cell (content is lava AND side is ahead AND distance < 2.5) THEN avoid forward"
    bank = RuleBank([parse_rule(text)], vocabulary, {"cell:distance": 1.0})
    image = np.zeros((3, 7, 7, 3), np.uint8)
    lava = OBJECT_TO_IDX["lava"], COLOR_TO_IDX["red"], 0
    image[0, 3, 5], image[1, 3, 2], image[2, 2, 6] = lava, lava, lava
    truths = bank.body(vocabulary.evaluate(image, None, bank.names))[:, 0].detach()
    assert truths[0] > 0.6 and truths[1] < 0.05 and truths[2] < 0.05
    scores = scorer(bank, vocabulary, use_avoid=True)(image, None, np.full((3, 1), 0))
    assert scores[0] > 0.3 and scores[1] == scores[2] == 0.0


TARGETS = ObjectSet.of_rows(
    "target",
    "a target on the radar",
    (
        Feature("range", "number", "distance", lambda now, later: now, "m", 0.0, 10.0),
        Feature("friend", "boolean", "whether it is one of ours", lambda now, later: now),
    ),
    lambda now: now["radar"],
)
RADAR = Vocabulary(
    "radar",
    "shoot no friends",
    (Feature("fuel", "number", "fuel left", lambda now, later: now["own"][:, 0]),),
    ActionSet(("wait", "shoot")),
    objects=(TARGETS,),
)
SPACE = spaces.Dict({"own": spaces.Box(0, 1, (1,)), "radar": spaces.Box(-1, 10, (4, 2))})


def test_a_key_with_an_object_axis_in_a_replay_buffer():
    """Rows of the key are objects; a row of zeros is none."""
    buffer = NSERReplayBuffer(50, SPACE, spaces.Discrete(2), device="cpu", trace_decay=0.0, seed=0)
    rng = np.random.default_rng(0)
    expected = []
    for _ in range(50):
        radar = np.stack([rng.uniform(0.5, 9, 4), rng.integers(0, 2, 4)], axis=1) * (rng.random((4, 1)) < 0.4)
        observation = {"own": rng.random((1, 1)).astype(np.float32), "radar": radar[None].astype(np.float32)}
        action = rng.integers(0, 2, 1)
        buffer.add(observation, observation, action, np.zeros(1), np.zeros(1), [{}])
        there = radar[radar.any(1)]
        near_friend = any(friend == 1 and distance < 3 for distance, friend in there)
        none_near = all(distance > 2 for distance, _ in there)
        expected.append((near_friend and action[0] == 0, none_near and action[0] == 1))
    texts = ("IF exists target (range < 3 AND friend is yes) THEN wait", "IF forall target (range > 2) THEN shoot")
    for at, text in enumerate(texts):
        bank = RuleBank([parse_rule(text).model_copy(update={"confidence": 0.9})], RADAR, {"target:range": 0.01})
        score = scorer(bank, RADAR)
        buffer.set_scorer(lambda rows, score=score: score(rows.observations, rows.next_observations, rows.actions))
        buffer.sample(4)
        np.testing.assert_array_equal(buffer.scores > 0.45, [row[at] for row in expected])


def test_what_objects_may_be_called():
    number = Feature("range", "number", "distance", lambda now, later: now)
    for name in ("earlier", "Within"):
        with pytest.raises(ConfigurationError, match="rules say that of earlier steps"):
            ObjectSet(name, "", (number,))
    with pytest.raises(ConfigurationError, match="names range twice"):
        ObjectSet("target", "", (number, number))
    own = Feature("range", "number", "range of the radar", lambda now, later: now)
    with pytest.raises(ConfigurationError, match="'radar' with 'target' names range twice"):
        Vocabulary("radar", "", (own,), ActionSet(("wait", "shoot")), objects=(ObjectSet("target", "", (number,)),))
    with pytest.raises(ConfigurationError, match="different names"):
        Vocabulary("radar", "", (RADAR["fuel"],), ActionSet(("wait", "shoot")), objects=(TARGETS, TARGETS))


def test_a_feature_of_objects_gives_one_value_per_place():
    flat = Feature("range", "number", "distance", lambda now, later: now["own"][:, 0])
    wrong = Vocabulary(
        "radar", "", (RADAR["fuel"],), ActionSet(("wait", "shoot")), objects=(ObjectSet("target", "", (flat,)),)
    )
    rows = {"own": th.zeros(3, 1), "radar": th.zeros(3, 4, 2)}
    with pytest.raises(UnsupportedError, match=r"'target:range' .* must return one value per row and place"):
        wrong.evaluate(rows, None, ["target:range"])
