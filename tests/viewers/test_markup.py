"""HTML that is escaped by construction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xprof_py.viewers.markup import Html, escape, join, prose, tag


def test_text_in_an_element_and_in_an_attribute_is_escaped() -> None:
    made = tag("p", "a<b>&\"'", title='"><img onerror=x>')
    assert made == '<p title="&quot;&gt;&lt;img onerror=x&gt;">a&lt;b&gt;&amp;&quot;&#x27;</p>'


def test_markup_is_not_escaped_twice() -> None:
    assert tag("p", tag("b", "x"), " & ") == "<p><b>x</b> &amp; </p>"


def test_attributes_that_are_absent_are_not_written() -> None:
    assert tag("td", "x", class_="n", scope=None, hidden=False, aria_label="y") == '<td class="n" aria-label="y">x</td>'


def test_control_characters_and_direction_overrides_are_replaced() -> None:
    assert escape("a\x00\x1b[31m\u202eb\ud800") == "a\ufffd\ufffd[31m\ufffdb?"


def test_backticks_mark_code_and_an_odd_one_stays() -> None:
    assert prose("put `with step(<i>):` here") == "put <code>with step(&lt;i&gt;):</code> here"
    assert prose("a ` b") == "a ` b"


@given(st.text())
def test_no_text_makes_an_element(value: str) -> None:
    for made in (escape(value), join([value, value], value), tag("p", value, title=value)[2:-4]):
        assert "<" not in str(made).replace("</p>", "")
    assert "<" not in prose(value).replace("<code>", "").replace("</code>", "")
    assert isinstance(escape(value), Html)
