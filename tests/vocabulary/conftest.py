"""What one test registers, the next does not see."""

import pytest

from sb3_nser.vocabulary import registry


@pytest.fixture(autouse=True)
def _leave_no_registrations():
    before = dict(registry._entries)
    yield
    registry._entries.clear()
    registry._entries.update(before)
