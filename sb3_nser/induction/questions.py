"""One question to an inducer, put together: prompt, schema, and the episodes that may be learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from sb3_nser.induction.base import InductionRequest
from sb3_nser.induction.episodes import Experience
from sb3_nser.induction.prompts import PromptSettings, build_messages, conditions_for, forms_for
from sb3_nser.rules.schema import reply_schema
from sb3_nser.vocabulary import Vocabulary


def question(
    vocabulary: Vocabulary,
    learnt_from: Experience,
    prompt: PromptSettings,
    *,
    forms: Sequence[str] = (),
    feedback: Sequence[str] = (),
    step: int = 0,
) -> InductionRequest:
    """
    :param vocabulary: names, task
    :param learnt_from: the episodes that rules may be learnt from, without those that will judge them; may be empty
    :param prompt: budget, count and number of the call; form, features shown and seed change with the number
    :param forms: prompt forms used in turn; none for what suits the vocabulary
    :param feedback: lines on rules proposed before
    :param step: environment step
    :return: the question
    :raises ConfigurationError: if names and task alone do not fit
    """
    used = tuple(forms) or forms_for(vocabulary)
    form = used[prompt.number % len(used)]
    messages = build_messages(vocabulary, learnt_from, feedback, form, prompt)
    ready_made = conditions_for(vocabulary, learnt_from, form, prompt)
    schema = reply_schema(vocabulary, prompt.max_rules, conditions=ready_made, rich=form == "rich")
    return InductionRequest(prompt.number, step, messages, schema, prompt.max_rules, form, vocabulary, learnt_from)
