"""What the site makes from the code, and the check of what was built."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated

import pytest

import surerag
from surerag.options import Doc, Options, Within, options
from tests.snippets import ROOT
from tools.check_site import PLACE, problems
from tools.finish_site import ELSEWHERE, finish, labelled
from tools.site_blocks import formula, options_table, study


@options
class SomeOptions(Options):
    """Options with all that a row can show."""

    top_n: Annotated[int | None, Within(1), Doc("Of ``a`` < b, see :class:`surerag.LazyRAG`.")] = None


def test_a_row_tells_name_type_bound_default_and_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surerag, "SomeOptions", SomeOptions, raising=False)
    assert (
        "<tr><td><code>top_n</code></td><td>integer or None, at least 1<br>default <code>None</code></td>"
        "<td>Of <code>a</code> &lt; b, see <code>surerag.LazyRAG</code>.</td></tr>"
    ) in options_table("surerag.SomeOptions\n")


@pytest.mark.parametrize("name", [name for name in surerag.__all__ if name.endswith("Options")])
def test_every_option_of_a_method_has_a_row(name: str) -> None:
    table = options_table(f"surerag.{name}")
    owner = getattr(surerag, name)
    assert all(f"<td><code>{option}</code></td>" in table for option in owner.OPTIONS)
    assert table.count("<tr>") == len(owner.OPTIONS) + 1
    assert "``" not in table


def test_a_class_without_options_is_refused() -> None:
    with pytest.raises(TypeError, match="has no options"):
        options_table("surerag.Passage")


def test_a_formula_becomes_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="of the site's own environment")
    assert "<mfrac>" in formula(r"\frac{1}{n}")


def test_tex_that_is_not_understood_is_refused() -> None:
    pytest.importorskip("latex2mathml", reason="of the site's own environment")
    with pytest.raises(ValueError, match="not understood"):
        formula(r"\arg\min_z u(z)")


def test_a_study_is_shown_as_it_was_printed() -> None:
    shown = study("edc2\n")
    printed = (ROOT / "docs/studies/printed/edc2.txt").read_text(encoding="utf-8")
    assert "Not inferior to plain RAG" in printed and escape(printed) in shown
    assert "&lt;" in study("l-rag")


def test_a_study_that_was_not_printed_is_refused() -> None:
    with pytest.raises(ValueError, match="not among what was printed"):
        study("some")


def site(folder: Path, body: str) -> list[str]:
    (folder / "index.html").write_text(f'<html lang="en">{body}</html>', encoding="utf-8")
    (folder / "other.html").write_text('<h1 id="here">Here</h1>', encoding="utf-8")
    return problems(folder)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ('<a href="nowhere.html">x</a>', "nowhere.html: no such file"),
        ('<a href="other.html#there">x</a>', "other.html#there: no such place on that page"),
        ('<a href="#there">x</a>', "#there: no such place on that page"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "https://cdn.example/x.js: loaded from elsewhere",
        ),
        ('<link rel="stylesheet" href="https://fonts.example/x.css">', "loaded from elsewhere"),
        ('<img src="data:,">', "a picture without words: data:,"),
        ('<a href="other.html"><svg></svg></a>', "a link or button without words, line 1"),
        ("<button><span> </span></button>", "a link or button without words, line 1"),
        ("<h1>x</h1><h3 id='deep'>y</h3>", "a heading of level 3 after one of 1: deep"),
    ],
)
def test_what_is_wrong_with_a_site_is_found(tmp_path: Path, body: str, wrong: str) -> None:
    (found,) = site(tmp_path, body)
    assert found.endswith(wrong)


def test_a_sound_site_has_no_problems(tmp_path: Path) -> None:
    sound = (
        '<a href="other.html#here">x</a><a href="https://elsewhere.example">y</a><img src="data:," alt="z">'
    )
    sound += '<a href="other.html"><img src="data:," alt="w"></a><button title="v"></button><h1>u</h1>'
    assert site(tmp_path, f'{sound}<link rel="canonical" href="https://a.example/">') == []


def test_a_cell_knows_its_column_so_that_a_telephone_can_show_it_alone() -> None:
    head = '<tr><th>a</th><th><em>b</em> "c"</th></tr>'
    table = f"<table>{head}<tr><td>1</td><td>2</td></tr></table>"
    cells = '<tr><td data-label="a">1</td><td data-label="b &quot;c&quot;">2</td></tr>'
    assert labelled(f"<p>x</p>{table}") == f"<p>x</p><table>{head}{cells}</table>"
    ours = '<table class="options"><tr><th>a</th></tr><tr><td>1</td></tr></table>'
    assert labelled(ours) == ours


def test_absolute_paths_begin_where_the_site_stands(tmp_path: Path) -> None:
    assert site(tmp_path, f'<a href="{PLACE}other.html#here">x</a>') == []
    assert site(tmp_path, f'<a href="{PLACE}nowhere.html">x</a>')
    configured = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"github.io{PLACE}\n" in configured


def test_what_search_needs_is_loaded_from_the_site_on_every_page(tmp_path: Path) -> None:
    page = f'<script src="{ELSEWHERE}" type="text/javascript"></script>'
    (tmp_path / "guides").mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    (tmp_path / "guides" / "costs.html").write_text(page, encoding="utf-8")
    (tmp_path / "other.html").write_text("<p>", encoding="utf-8")
    assert len(problems(tmp_path)) == 2
    assert finish(tmp_path) == 2
    (tmp_path / "assets" / "iframe-worker.js").touch()
    assert (ROOT / "docs/assets/iframe-worker.js").is_file()
    assert problems(tmp_path) == []
