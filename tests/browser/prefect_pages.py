"""The pages of the Prefect UI as a person uses them. Its markup is not ours: every selector into it lies here."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, Response, expect

SECONDS = 90.0
RUN_ADDRESS = re.compile(r"/runs/flow-run/([0-9a-f-]{36})")

expect.set_options(timeout=SECONDS * 1000)


def served(page: Page, address: re.Pattern[str], press: Callable[[], None]) -> Response:
    """The server's answer to what `press` asks for; pressed again while its SQLite is busy."""
    deadline = time.monotonic() + SECONDS
    while True:
        with page.expect_response(address) as answered:
            press()
        if answered.value.status != 503 or time.monotonic() > deadline:
            return answered.value


def log_in(page: Page, url: str, password: str) -> None:
    """Open the pages, which ask for the password, and give it to them."""
    page.goto(url)
    page.wait_for_url(re.compile("/login"))
    page.locator("input[type=password]").fill(password)
    page.get_by_role("button", name="Login").click()
    page.wait_for_url(re.compile("^(?!.*/login)"))


class RunForm:
    """The form of a deployment's custom run."""

    def __init__(self, page: Page, url: str, deployment: str) -> None:
        flow, name = deployment.split("/")
        page.goto(f"{url}/deployments")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=flow, exact=True))
        row.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_text("Custom run").click()
        expect(page.get_by_role("button", name="Submit")).to_be_visible()
        self.page = page

    def labels(self) -> list[str]:
        """Of all parameters, from top to bottom."""
        found = self.page.locator(".schema-form-property__label")
        expect(found.first).to_be_visible()
        return found.all_inner_texts()

    def field(self, label: str) -> Locator:
        """The label, help text and input of one parameter."""
        exact = re.compile(rf"^{re.escape(label)}( \(Optional\))?$")
        caption = self.page.locator(".schema-form-property__label").filter(has_text=exact)
        return self.page.locator(".schema-form-property").filter(has=caption).last

    def help_texts(self) -> dict[str, str]:
        """Of all parameters, by label; empty where there is none."""
        labels = [label.removesuffix(" (Optional)") for label in self.labels()]
        said = {label: self.field(label).locator(".schema-form-property__description") for label in labels}
        return {label: text.inner_text() if text.count() else "" for label, text in said.items()}

    def fill(self, label: str, text: str) -> None:
        """Type into a text or number field."""
        self.field(label).locator("input, textarea").fill(text)

    def chosen(self, label: str) -> list[str]:
        """What a dropdown field holds: one text, or those of several choices."""
        value = self.field(label).locator(".p-select-button__value")
        several = value.locator(".p-tag")
        return (several if several.count() else value).all_inner_texts()

    def offered(self, label: str) -> list[str]:
        """What the dropdown of a field has to choose from."""
        texts = self._options(label).all_inner_texts()
        self.page.keyboard.press("Escape")
        return texts

    def _options(self, label: str) -> Locator:
        self.field(label).locator(".p-select-button__icon").click()  # a click on the text opens and closes it at once
        options = self.page.locator(".p-pop-over-content .p-select-option__text")
        expect(options.first).to_be_visible()
        return options

    def refused(self, because: str) -> None:
        """Submit it, and see it refused for a reason."""
        answer = self._press_submit()
        assert not answer.ok
        expect(self.page.locator(".p-toast__message").filter(has_text=because).first).to_be_visible()

    def submit(self) -> RunPage:
        """Start the run, and follow the link in the deployment's list to its page."""
        answer = self._press_submit()
        assert answer.ok, answer.text()
        self.page.locator(f"a[href$='/runs/flow-run/{answer.json()['id']}']").first.click()
        self.page.wait_for_url(RUN_ADDRESS)
        return RunPage(self.page)

    def _press_submit(self) -> Response:
        submit = self.page.get_by_role("button", name="Submit")
        return served(self.page, re.compile("/create_flow_run$"), submit.click)


class RunPage:
    """The page of one flow run."""

    def __init__(self, page: Page) -> None:
        found = RUN_ADDRESS.search(page.url)
        assert found, page.url
        self.page = page
        self.id = found[1]

    def come_back(self) -> None:
        """From the page of one of its artifacts."""
        self.page.locator(f".artifact-details a[href='/runs/flow-run/{self.id}']").click()
        expect(self.state).to_be_visible()

    @property
    def state(self) -> Locator:
        """The badge that names it."""
        return self.page.locator(".page-heading-flow-run .state-badge")

    @property
    def heading(self) -> Locator:
        """With the run's name and tags."""
        return self.page.locator(".page-heading-flow-run")

    def tab(self, name: str) -> Locator:
        """The content below a tab, opened."""
        tab = self.page.locator(".p-tab").filter(has_text=re.compile(rf"^\s*{name}\s*$"))
        tab.click()
        return self.page.locator(f"#{name.lower().replace(' ', '-')}-content")

    def cancel(self) -> None:
        """Press the button, and say yes."""

        def press() -> None:
            self.page.get_by_role("button", name="Cancel", exact=True).click()
            self.page.get_by_role("dialog").get_by_role("button", name="Confirm").click()

        answer = served(self.page, re.compile(f"/flow_runs/{self.id}/set_state$"), press)
        assert answer.ok, answer.text()

    def artifact_card(self, key: str) -> Locator:
        """What the run's list of artifacts shows of one."""
        content = self.tab("Artifacts")
        title = self.page.locator(".artifact-card__title").filter(has_text=re.compile(rf"^\s*{re.escape(key)}\s*$"))
        return content.get_by_role("link").filter(has=title)

    def artifact(self, key: str) -> ArtifactPage:
        """Open one of the run's artifacts."""
        self.artifact_card(key).first.click()
        expect(self.page.locator(".artifact-data-view")).to_be_visible()
        return ArtifactPage(self.page)


class ArtifactPage:
    """The page of one artifact."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def description(self) -> Locator:
        return self.page.locator(".artifact-description")

    @property
    def content(self) -> Locator:
        return self.page.locator(".artifact-data-view")

    def progress_above(self, percent: float) -> float:
        """The percentage, once it is more than that."""
        self.reload_until(f"more than {percent} %", lambda: self._progress() > percent)
        return self._progress()

    def reload_until(self, what: str, shown: Callable[[], bool]) -> None:
        """Reload it until it shows something."""
        deadline = time.monotonic() + SECONDS
        while True:
            expect(self.content).to_be_visible()
            if shown():
                return
            assert time.monotonic() < deadline, f"never {what}; the page shows:\n{self.content.inner_text()}"
            self.page.reload()

    def _progress(self) -> float:
        text = self.content.locator(".artifact-data-progress").inner_text()
        return float(text.strip().removeprefix("Progress: ").removesuffix("%"))

    def columns(self) -> list[str]:
        return self.content.locator("th").all_inner_texts()

    def rows(self) -> list[list[str]]:
        """The cells of a table."""
        expect(self.content.locator("tbody tr").first).to_be_visible()
        return self.content.locator("tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )

    def images(self) -> list[tuple[int, int]]:
        """Width and height in pixels of each image, as decoded; (0, 0) for a broken one."""
        found = self.content.locator("img")
        expect(found.first).to_be_visible()
        return found.evaluate_all("images => images.map(image => [image.naturalWidth, image.naturalHeight])")
