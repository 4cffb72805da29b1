from tests.priced_once import an_event_is_priced_once  # noqa: F401
