"""Pictures of graphs: what is in them, and that a browser shows it."""

from __future__ import annotations

import re
import shutil
import time

import pytest
from project import ROOT, need

from exporter.common.errors import MissingRuntimeError, OutputError
from exporter.graph.drawing import INPUT, OUTPUT, build_drawing
from exporter.graph.executor_stages import compute_stage
from exporter.graph.html_view import write_html
from exporter.graph.loading import open_file
from exporter.graph.svg_view import READABLE, choose_open_groups, write_svg

FOLDER = ROOT / "artifacts"


def drawn(name: str, method: str = "forward"):
    item = compute_stage(open_file(FOLDER / f"{name}.pt"), method, "raw")
    return build_drawing(item.graph, item.names, item.outputs), item.graph


def test_every_operation_is_a_shape_in_the_group_of_its_model():
    result, graph = drawn("rates")
    operations = [s for s in result.shapes if s.kind not in (INPUT, OUTPUT)]
    # The tuple that is returned is the outputs themselves.
    assert len(operations) == len(graph) - 1
    assert {s.group for s in operations} == {"/rate_a", "/rate_b", "/rate_c"}
    assert [s.label for s in result.shapes if s.kind == OUTPUT] == ["a_rate", "b_rate", "c_rate"]
    assert [s.label for s in result.shapes if s.kind == INPUT][:3] == ["a", "a~1", "t"]
    assert len(result.edges) == 12 + 6 + 3


@pytest.mark.parametrize(("name", "method"), [("return_map", "forward"), ("perzyna", "jacobian"), ("bar", "forward")])
def test_values_go_in_and_come_out_through_loops_and_branches(name, method):
    result, graph = drawn(name, method)
    names = {s.name for s in result.shapes}
    groups = {g.name for g in result.groups}
    assert {end for edge in result.edges for end in edge} <= names
    assert {s.group for s in result.shapes} - {""} <= groups
    assert {g.parent for g in result.groups} - {""} <= groups
    reached = {a for a, _ in result.edges}
    # All but what only raises, and what nothing uses.
    assert {s.name for s in result.shapes if s.kind == INPUT} <= reached
    assert {s.name for s in result.shapes if s.kind == OUTPUT} <= {b for _, b in result.edges}
    assert len(result.shapes) >= len(graph)


def test_no_group_has_more_side_by_side_than_can_be_read():
    result, graph = drawn("return_map")
    assert len(graph) > 2000
    sizes: dict[str, int] = {}
    for shape in result.shapes:
        sizes[shape.group] = sizes.get(shape.group, 0) + 1
    assert max(sizes.values()) <= 60


def test_an_svg(tmp_path):
    need(shutil.which("dot") is not None, "Graphviz is not installed (apt-get install graphviz)")
    result, _ = drawn("rates")
    assert write_svg(tmp_path / "eq.svg", result, "eq") == 0
    text = (tmp_path / "eq.svg").read_text()
    assert "sub.Tensor" in text
    assert text.count('class="node"') == len(result.shapes)
    assert text.count('class="edge"') == len(result.edges)
    assert text.count('class="cluster"') == 3


def test_an_svg_of_thousands_is_drawn_closed(tmp_path):
    need(shutil.which("dot") is not None, "Graphviz is not installed (apt-get install graphviz)")
    result, _ = drawn("return_map")
    assert write_svg(tmp_path / "m.svg", result, "m") > 0
    assert len(choose_open_groups(result)) < len(result.groups)
    count = (tmp_path / "m.svg").read_text().count('class="node"')
    assert 10 < count <= READABLE


def test_without_graphviz_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result, _ = drawn("rates")
    with pytest.raises(MissingRuntimeError, match="Graphviz is not installed") as caught:
        write_svg(tmp_path / "eq.svg", result, "eq")
    assert "apt-get install graphviz" in caught.value.details["mend"]
    assert "--html" in caught.value.details["mend"]
    assert not (tmp_path / "eq.svg").exists()
    write_html(tmp_path / "eq.html", result, "eq")


def test_a_page_stands_by_itself(tmp_path):
    result, _ = drawn("rates")
    write_html(tmp_path / "eq.html", result, "</script><b>")
    text = (tmp_path / "eq.html").read_text()
    assert "&lt;/script&gt;&lt;b&gt;" in text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text)
    with pytest.raises(OutputError):
        write_html(tmp_path / "eq.html" / "below.html", result, "eq")
    with pytest.raises(OutputError, match="a folder"):
        write_html(tmp_path, result, "eq")
    (tmp_path / "link.html").symlink_to(tmp_path / "eq.html")
    write_html(tmp_path / "link.html", result, "another title")
    assert (tmp_path / "link.html").is_symlink()
    assert "another title" in (tmp_path / "eq.html").read_text()


@pytest.fixture(scope="module")
def browser():
    paths = [shutil.which("chromium") or shutil.which("google-chrome") or "", shutil.which("chromedriver") or ""]
    need(all(paths), "Chromium is not installed (apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,900")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(paths[1]))
    yield driver
    driver.quit()


def shown(browser) -> int:
    return int(browser.execute_script("return document.body.dataset.shown"))


def click(browser, name: str) -> None:
    """On the middle of the shape, as a user clicks; the frame of an open group is clicked at its title."""
    x, y = browser.execute_script(
        "const n = cy.getElementById(arguments[0]), b = n.renderedBoundingBox();"
        "const f = cy.container().getBoundingClientRect();"
        "return [f.left + (b.x1 + b.x2) / 2, f.top + (n.isParent() ? b.y1 + 3 : (b.y1 + b.y2) / 2)]",
        name,
    )
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    actions = ActionBuilder(browser)
    actions.pointer_action.move_to_location(round(x), round(y)).click()
    actions.perform()


def test_a_click_opens_a_group_and_another_closes_it(browser, tmp_path):
    result, _ = drawn("rates")
    write_html(tmp_path / "eq.html", result, "eq: forward")
    browser.get((tmp_path / "eq.html").as_uri())
    # Eight inputs, three closed groups, three outputs.
    assert shown(browser) == 14
    click(browser, "/rate_b")
    assert shown(browser) == 16
    assert browser.find_element("id", "said").text == "rate_b"
    operation = next(s for s in result.shapes if s.group == "/rate_b")
    click(browser, operation.name)
    assert operation.detail in browser.find_element("id", "said").text
    assert operation.where in browser.find_element("id", "said").text
    browser.find_element("id", "close").click()
    assert shown(browser) == 14
    browser.find_element("id", "open").click()
    assert shown(browser) == len(result.shapes)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_no_two_shapes_lie_on_each_other(browser, tmp_path):
    result, _ = drawn("rates")
    write_html(tmp_path / "eq.html", result, "eq")
    browser.get((tmp_path / "eq.html").as_uri())
    browser.find_element("id", "open").click()
    overlapping = browser.execute_script(
        "const b = cy.nodes(':childless').map(n => n.boundingBox({includeLabels: true})); let c = 0;"
        "for (let i = 0; i < b.length; i++) for (let j = 0; j < i; j++)"
        " if (b[i].x1 < b[j].x2 && b[j].x1 < b[i].x2 && b[i].y1 < b[j].y2 && b[j].y1 < b[i].y2) c++; return c"
    )
    assert overlapping == 0


def test_thousands_of_operations_open_step_by_step(browser, tmp_path):
    result, graph = drawn("return_map")
    assert len(graph) > 2000
    write_html(tmp_path / "m.html", result, "m")
    start = time.perf_counter()
    browser.get((tmp_path / "m.html").as_uri())
    assert 5 < shown(browser) < 80
    before = shown(browser)
    click(browser, "/newton")
    assert before < shown(browser) < 300
    # Not a figure: a page that has frozen.
    assert time.perf_counter() - start < 30
