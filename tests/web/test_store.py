"""The server's own store: what a revoked token and a removed person leave behind."""

import pytest

from discreet import InvalidInput
from discreet.app.web.store import Role, ServerStore


def test_a_revoked_token_leaves_no_password_behind(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    _, public = store.issue_token("ann", 1)
    store.set_password("ann", "a password of a thief")
    assert store.by_password("ann", "a password of a thief") is not None
    assert store.revoke_token(public) == "ann"
    assert store.by_password("ann", "a password of a thief") is None
    store.close()


def test_the_name_of_somebody_who_was_removed_is_not_given_again(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    assert store.remove_person("ann")
    with pytest.raises(InvalidInput, match="another person's"):
        store.add_person("ann", Role.ANALYST)
    store.close()


def test_all_unfinished_jobs_are_counted(tmp_path):
    store = ServerStore(tmp_path)
    store.add_person("ann", Role.ANALYST)
    first = store.add_job("ann", "health", "fit", 60)
    for _ in range(250):
        store.set_job(store.add_job("ann", "health", "fit", 60), "cancelled")
    assert [job["id"] for job in store.unfinished_jobs("ann")] == [first]
    store.close()
