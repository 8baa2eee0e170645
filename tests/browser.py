"""A real browser without a screen, for tests of pages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason=f"needs {CHROMIUM} and {DRIVER} (apt: chromium chromium-driver)"
)
WAIT_S = 120.0
"""For a page of Prefect on a machine that is busy with everything else."""
PRESSES = 4
"""How often a button is pressed that does nothing: a page may swallow a click while it is being drawn again."""

SCROLLS = 100
IN_VIEW = """
arguments[0].scrollIntoView({block: "center"})
const box = arguments[0].getBoundingClientRect()
return [innerWidth / 2, box.y + box.height / 2]
"""


class Page:
    """A browser in which elements are waited for, and named by what a person reads."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for argument in (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-dev-shm-usage", "--no-proxy-server", "--window-size=1600,1000", f"--user-data-dir={profile}"),
        ):
            options.add_argument(argument)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
        self._wait = WebDriverWait(self.driver, WAIT_S, ignored_exceptions=[StaleElementReferenceException])

    def find(self, xpath: str) -> WebElement:
        def shown(driver: webdriver.Chrome) -> WebElement | None:
            return next((item for item in driver.find_elements(By.XPATH, xpath) if item.is_displayed()), None)

        return self._wait.until(shown, f"nothing like {xpath} on {self.driver.current_url}")

    def turn_to(self, tab: str) -> None:
        """Opens a tab of a run's page."""
        self.find(f"//li[normalize-space()='{tab}']").click()

    def has(self, text: str) -> bool:
        """Whether a person reads this on the page now."""
        return text in self.driver.find_element(By.TAG_NAME, "body").text

    def shows(self, text: str) -> None:
        """Waits until the page has this text. It is not loaded again."""
        try:
            self._wait.until(lambda driver: self.has(text))
        except TimeoutException:
            has = self.driver.find_element(By.TAG_NAME, "body").text
            pytest.fail(f"no {text!r} on {self.driver.current_url}: {has}")

    def scroll_to(self, text: str, beside: str) -> None:
        """Turns the wheel over a table, in the row `beside`, until `text` is there: rows out of view are not drawn."""
        place = self.driver.execute_script(IN_VIEW, self.find(f"//*[normalize-space()='{beside}']"))
        wheel = ScrollOrigin.from_viewport(*(int(each) for each in place))
        for _ in range(SCROLLS):
            if self.has(text):
                return
            ActionChains(self.driver).scroll_from_origin(wheel, 0, 60).perform()
        pytest.fail(f"no {text!r} in the table of {beside!r}")

    def press(self, button: str, until: Callable[[], bool]) -> None:
        """Presses a button until that is so, as a person would: again only where the page still shows it later."""
        xpath = f"//button[normalize-space()='{button}']"
        self.find(xpath)
        for _ in range(PRESSES):
            shown = self.driver.find_elements(By.XPATH, xpath)
            if not shown:
                break
            with suppress(WebDriverException):  # Drawn again between the look and the click, or hidden for a moment.
                shown[0].click()
            with suppress(TimeoutException):
                self._wait.until(lambda driver: until())
                return
        text = self.driver.find_element(By.TAG_NAME, "body").text
        pytest.fail(f"{button} did not help. {self.driver.current_url}: {text} {self.driver.get_log('browser')}")

    def change(self, field: str, before: str, after: str) -> None:
        box = self.find(f"//label[normalize-space()='{field} (Optional)']/following::input[1]")
        self._wait.until(lambda driver: box.get_attribute("value") == before, f"{field} is not {before}")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(after)
        assert box.get_attribute("value") == after
