"""The public names are few, and each of them exists."""

import coterie


def test_every_public_name_exists() -> None:
    missing = [name for name in coterie.__all__ if not hasattr(coterie, name)]
    assert not missing


def test_public_names_are_few_and_listed_once() -> None:
    assert len(coterie.__all__) <= 40
    assert len(set(coterie.__all__)) == len(coterie.__all__)
