"""Objects named by package.module:object, and what is said where there is none."""

import pytest

import manyhands as mh
from manyhands.config.import_path import import_object


def test_a_users_error_while_importing_is_the_users(tmp_path, monkeypatch):
    (tmp_path / "faulty_module.py").write_text("int('a')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="invalid literal"):
        import_object("faulty_module:make", "model")
    for spec in ("", ":make", "mine", "mine:", "1x:make"):
        with pytest.raises(mh.ConfigError, match=r"expected package\.module:factory"):
            import_object(spec, "model")
