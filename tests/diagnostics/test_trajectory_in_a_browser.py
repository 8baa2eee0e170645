"""The page of a trial in a real browser: it shows what it should, runs nothing and fetches nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from components.diagnostics.trajectory import decoder, find, html, view
from tests.browser import Page, needs_browser
from tests.diagnostics.trajectories import stored_campaign

pytestmark = [pytest.mark.nightly, needs_browser]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    store = stored_campaign(folder)
    for name in ("plain", "hostile"):
        found = find(store, name)
        (folder / f"{name}.html").write_text(html(view(found, decoder(store, found.campaign))), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ("plain", "hostile")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    made = Page(tmp_path_factory.mktemp("profile"))
    yield made
    made.driver.quit()


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A server that no page may speak to, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def colour(browser: Page, css: str) -> str:
    return browser.driver.find_element(By.CSS_SELECTOR, css).value_of_css_property("background-color")


def test_turns_tokens_and_their_colours_are_seen_and_can_be_switched(browser: Page, pages: dict[str, Path]) -> None:
    browser.driver.get(pages["plain"].as_uri())
    assert browser.driver.title == "Trial plain"
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "details[open]")) == 3
    token = "#turn-0 .tokens .g1.s5"
    assert colour(browser, token) == "rgba(255, 247, 214, 1)", "a gap of 0.02, the style sheet holds"
    assert "gap 0.0200" in browser.driver.find_element(By.CSS_SELECTOR, token).get_attribute("title")
    browser.find("//label[@for='sure']").click()
    assert colour(browser, token) == "rgba(59, 91, 219, 1)", "e^-5 is a surprise"
    browser.find("//label[@for='worth']").click()
    assert colour(browser, token) == "rgba(143, 219, 160, 1)", "it was worth more than expected"
    browser.find("//summary[contains(., 'Turn 1')]").click()
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "details[open]")) == 2
    assert browser.driver.get_log("browser") == []


def test_a_hostile_trial_runs_nothing_and_fetches_nothing(browser: Page, pages: dict[str, Path]) -> None:
    browser.driver.get(pages["hostile"].as_uri())
    assert browser.driver.title == "Trial hostile"
    for tag in ("script", "img", "svg", "iframe", "a", "link", "object"):
        assert browser.driver.find_elements(By.TAG_NAME, tag) == [], tag
    fetched = browser.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert fetched == []
    assert browser.find("//*[contains(text(), 'The verifier reports tampering')]")
    assert "<script>document.title='owned'</script>" in browser.driver.find_element(By.TAG_NAME, "body").text
    wide = browser.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "a line of 200,000 characters does not widen the page"
    assert browser.driver.get_log("browser") == []


def test_what_got_into_the_page_all_the_same_would_neither_run_nor_load(
    browser: Page, pages: dict[str, Path], tmp_path: Path, elsewhere: tuple[str, list[str]]
) -> None:
    """The second wall: as if a text had not been escaped."""
    planted = (
        "<script>document.title='owned'</script>"
        f"<img src='{elsewhere[0]}/x.png' onerror=\"document.title='owned'\">"
        "<style>h1{display:none}</style><b style='color: red'>x</b>"
    )
    page = tmp_path / "torn.html"
    page.write_text(pages["plain"].read_text(encoding="utf-8").replace("<h1>", f"{planted}<h1>", 1), encoding="utf-8")
    browser.driver.get(page.as_uri())
    assert browser.driver.title == "Trial plain"
    assert browser.find("//h1").is_displayed()
    assert elsewhere[1] == []
    told = " ".join(entry["message"] for entry in browser.driver.get_log("browser"))
    assert told.count("violates the following Content Security Policy directive") >= 4
