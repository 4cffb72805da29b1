"""Answers questions about tables so that nobody who builds one can reveal more than its price.

A *question* (`question.Question`) is a tree of tables, filters and joins (`sources`), with groups, measures
and choices over it (`form.Form`), and the noise of each number. Nothing in it names the unit of privacy or
states a sensitivity: the core computes both, writes the engine's SQL with the limits in it (`scan`,
`compile`), adds exact noise, and derives the event that is charged. `docs/core.md` has the theorem, and what
each file must keep true.
"""
