"""Arguments before environment before pyproject.toml before defaults; what does not fit names its source."""

import pytest

from xprof_py.config import Settings, choice, load_settings
from xprof_py.errors import UsageError, XprofPyWarning


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.xprof_py]\nsession = "from-file"\nbudget_bytes = 1000000\nhost_tracer_level = 1\n', encoding="utf-8"
    )
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    return below


def test_defaults(tmp_path):
    assert load_settings({}, {}, tmp_path) == Settings()


def test_the_order_of_sources(project):
    environ = {"XPROF_PY_SESSION": "from-env", "XPROF_PY_BUDGET_BYTES": "2000000"}
    settings = load_settings({"budget_bytes": 3_000_000}, environ, project)
    assert (settings.budget_bytes, settings.session, settings.host_tracer_level) == (3_000_000, "from-env", 1)
    assert settings.stop_timeout_s == Settings.stop_timeout_s


def test_the_nearest_pyproject_with_the_table_counts(project):
    (project / "pyproject.toml").write_text("[project]\nname = 'other'\n", encoding="utf-8")
    assert load_settings({}, {}, project).session == "from-file"


def test_a_restarted_job_gets_a_session_of_its_own(tmp_path):
    assert load_settings({}, {"TORCHELASTIC_RESTART_COUNT": "2"}, tmp_path).session == "run-restart2"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({"XPROF_PY_XLA": "0"}, False), ({"XPROF_PY_XLA": "on"}, True), ({"XPROF_PY_XLA": "auto"}, "auto"), ({}, "auto")],
)
def test_xla_from_the_environment(environ, expected, tmp_path):
    assert load_settings({}, environ, tmp_path).xla == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XPROF_PY_SESSION", "../elsewhere"),
        ("XPROF_PY_SESSION", ".hidden"),
        ("XPROF_PY_BUDGET_BYTES", "lots"),
        ("XPROF_PY_BUDGET_BYTES", "1"),
        ("XPROF_PY_HOST_TRACER_LEVEL", "4"),
        ("XPROF_PY_XLA", "maybe"),
        ("XPROF_PY_STOP_TIMEOUT_S", "-1"),
        ("XPROF_PY_DRAIN_TIMEOUT_S", "nan"),
        ("XPROF_PY_LEVEL", "high"),
        ("XPROF_PY_LEVEL", "1.5"),
    ],
)
def test_a_bad_value_names_its_variable(name, value, tmp_path):
    with pytest.raises(UsageError, match=name):
        load_settings({}, {name: value}, tmp_path)


@pytest.mark.parametrize("table", ["categories = [1]", "categories = 5", "level = true", "level = 9999999999"])
def test_a_bad_filter_in_pyproject_is_a_warning_and_filters_nothing(table, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.xprof_py]\n{table}\n", encoding="utf-8")
    with pytest.warns(XprofPyWarning, match="the default is used"):
        assert load_settings({}, {}, tmp_path) == Settings()


def test_categories_are_a_list_or_one_text(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.xprof_py]\nlevel = 2\ncategories = ["a", "b c"]\n')
    assert load_settings({}, {}, tmp_path).categories == ("a", "b c")
    settings = load_settings({}, {"XPROF_PY_CATEGORIES": "x, y", "XPROF_PY_LEVEL": "-1"}, tmp_path)
    assert (settings.level, settings.categories) == (-1, ("x", "y"))


def test_a_bad_argument_is_not_hidden_by_a_good_variable(tmp_path):
    with pytest.raises(UsageError, match="argument budget_bytes"):
        load_settings({"budget_bytes": True}, {"XPROF_PY_BUDGET_BYTES": "1000000"}, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tool.xprof_py\n", r"pyproject\.toml: cannot be read: "),
        ("name = '\\udc80", r"pyproject\.toml: cannot be read: "),
        ("x = " + "[" * 100_000, r"pyproject\.toml: cannot be read: "),
        ("tool.xprof_py = 3\n", r"pyproject\.toml: tool\.xprof_py is not a table"),
        ("[[tool.xprof_py]]\nxla = true\n", r"pyproject\.toml: tool\.xprof_py is not a table"),
        ("[tool.xprof_py]\nsesion = 'x'\n", r"pyproject\.toml: .*has no setting sesion; there are session"),
        (
            "[tool.xprof_py]\nbudget_bytes = 'lots'\n",
            r"pyproject\.toml: tool\.xprof_py\.budget_bytes = 'lots': wants .*; the default is used, 1073741824",
        ),
    ],
)
def test_what_is_wrong_in_pyproject_is_a_warning_and_leaves_the_default(content, said, tmp_path):
    (tmp_path / "pyproject.toml").write_text(content, encoding="utf-8")
    below = tmp_path / "training"
    below.mkdir()
    with pytest.warns(XprofPyWarning, match=said) as warned:
        assert load_settings({}, {}, below) == Settings()
    assert len(warned) == 1


def test_a_broken_pyproject_leaves_arguments_and_variables_in_force(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.warns(XprofPyWarning, match=r"pyproject\.toml"):
        settings = load_settings({"budget_bytes": 3_000_000}, {"XPROF_PY_SESSION": "mine"}, tmp_path)
    assert settings == Settings(budget_bytes=3_000_000, session="mine")


def test_one_wrong_value_leaves_the_others_of_its_table(project):
    (project / "pyproject.toml").write_text("[tool.xprof_py]\nxla = 2\nhost_tracer_level = 3\n", encoding="utf-8")
    with pytest.warns(XprofPyWarning, match=r"tool\.xprof_py\.xla"):
        assert load_settings({}, {}, project) == Settings(host_tracer_level=3)


@pytest.mark.parametrize("content", ["tool = 3\n", "[tool.other]\n"])
def test_a_pyproject_without_the_table_is_nothing_to_say(content, tmp_path):
    (tmp_path / "pyproject.toml").write_text(content, encoding="utf-8")
    assert load_settings({}, {}, tmp_path) == Settings()


def test_choice_refuses_numbers():
    with pytest.raises(ValueError, match="auto"):
        choice(1)
