"""All stories, by name: from questions in SQL to prices, each of them one short function of a stage."""

from __future__ import annotations

from collections.abc import Callable

from . import asking, doors, models, pricing, watching, writing
from .stage import Stage

STORIES: dict[str, Callable[[Stage], None]] = {
    story.__name__: story
    for module in (asking, writing, models, watching, doors, pricing)
    for story in module.STORIES
}
