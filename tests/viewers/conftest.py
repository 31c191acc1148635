"""The made-up analyses, a parser for the report, and a browser where there is one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    """The module sample.py beside this file."""
    spec = importlib.util.spec_from_file_location("viewers_sample", Path(__file__).with_name("sample.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None]
    children: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str, **attributes: str) -> list[Node]:
        """Every element of this name below, in document order, whose attributes hold these words."""
        found: list[Node] = []
        for child in self.children:
            if isinstance(child, Node):
                wanted = all(v in (child.attributes.get(k.rstrip("_")) or "").split() for k, v in attributes.items())
                if (child.tag == tag or tag == "*") and wanted:
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def one(self, tag: str, **attributes: str) -> Node:
        found = self.all(tag, **attributes)
        assert len(found) == 1, f"{len(found)} elements {tag} {attributes}"
        return found[0]

    def body_rows(self) -> list[list[str]]:
        """The texts of the cells of every body row of the tables below."""
        lines = [row for body in self.all("tbody") for row in body.all("tr")]
        return [[cell.text for cell in row.children if isinstance(cell, Node)] for row in lines]


class _Tree(HTMLParser):
    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in self.VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


@pytest.fixture(scope="session")
def parse() -> Callable[[str], Node]:
    """HTML -> tree; an element that is not closed where it should be fails."""

    def parse_page(page: str) -> Node:
        tree = _Tree()
        tree.feed(page)
        tree.close()
        assert tree.open == [tree.root], f"left open: {[node.tag for node in tree.open[1:]]}"
        return tree.root

    return parse_page


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page: the document after its script ran, and what it logged."""

    dom: str
    console: list[str]


@pytest.fixture(scope="session")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Visit]:
    """visit(page, width=1280, dark=False) opens the page from a file in headless Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium or Chrome on PATH: install one to look at the page in a browser")

    def open_page(page: str, *, width: int = 1280, dark: bool = False) -> Visit:
        folder = tmp_path_factory.mktemp("visit")
        (folder / "page.html").write_text(page, encoding="utf-8")
        done = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                "--v=0",
                "--virtual-time-budget=4000",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--user-data-dir={folder / 'profile'}",
                f"--window-size={width},900",
                "--dump-dom",
                (folder / "page.html").as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "</html>" in done.stdout, done.stderr[-2000:]
        return Visit(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])

    return open_page
