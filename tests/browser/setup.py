"""Plays an operator at the set-up's page, in Debian's Chromium. `tests/tests/setup` starts it.

    setup.py cancel|whole LINK FOLDER

LINK is what `ostler setup` printed; screenshots and the text of every page go to FOLDER. What it saw is printed as JSON.
A step that can't be taken ends it with an error. Every page of ours must pass axe's rules of WCAG 2.2 A and AA, and must
not break its own content policy.
"""

import json
import os
import pathlib
import shutil
import sys

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

# No profile, no network of Chromium's own.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# For one step, in milliseconds. The machine may be busy.
PATIENCE = 120_000
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}}


class Operator:
    def __init__(self, context, folder):
        self.context = context
        self.folder = folder
        self.seen = {"headings": [], "faults": [], "statuses": {}}
        self.page = context.new_page()
        self.page.on("console", lambda message: self.fault(f"console: {message.text}") if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.fault(f"script: {error}"))

    def fault(self, text):
        # A refused form is one, and so Chromium says for our own tests of refusals.
        if "Failed to load resource" not in text:
            self.seen["faults"].append(text)

    def look(self, name, heading):
        """Waits for a page of ours, and keeps what it looks like."""
        expect(self.page.locator("h1")).to_have_text(heading)
        self.seen["headings"].append(heading)
        self.page.screenshot(path=self.folder / f"{name}.png", full_page=True)
        self.page.emulate_media(color_scheme="dark")
        self.page.screenshot(path=self.folder / f"{name}-dark.png", full_page=True)
        self.page.emulate_media(color_scheme="light")
        (self.folder / f"{name}.html").write_text(self.page.content())
        for violation in Axe().run(self.page, options=RULES).response["violations"]:
            nodes = [node["html"] for node in violation["nodes"]]
            self.fault(f"{name}: {violation['id']}: {violation['help']}: {nodes}")

    def ask(self, name, path):
        """What this browser is answered at an address of the page's, without going there."""
        answer = self.context.request.get(self.origin + path, max_redirects=0)
        (self.folder / f"{name}.html").write_text(answer.text())
        self.seen["statuses"][name] = answer.status

    def begin(self, link):
        self.page.goto(link)
        self.origin = "/".join(link.split("/")[:3])
        self.look("1-review", "Create Ostler’s GitHub App")
        assert self.page.url == self.origin + "/", "the key has left the address"

    def cancel(self):
        self.page.get_by_role("button", name="Cancel").click()
        self.look("2-cancelled", "Cancelled")

    def whole(self):
        page = self.page
        page.set_viewport_size({"width": 390, "height": 800})
        page.screenshot(path=self.folder / "1-review-narrow.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 900})
        self.ask("wrong-state", "/back?code=c0ffee&state=0123456789")
        self.ask("no-state", "/back?code=c0ffee")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Continue at GitHub").click()

        # At GitHub. The name is another's at first.
        name = page.get_by_label("GitHub App name")
        expect(name).to_have_value("ostler-acme")
        name.fill("Ostler local")
        page.get_by_role("button", name="Create GitHub App for acme").click()
        expect(page.get_by_role("alert")).to_have_text("Name is already taken")
        back = []
        page.on("request", lambda request: back.append(request.url) if "/back?" in request.url else None)
        page.get_by_label("GitHub App name").fill("ostler-acme")
        page.get_by_role("button", name="Create GitHub App for acme").click()

        # And back.
        self.look("3-stored", "The keys are stored. Now install the App")
        assert page.url == self.origin + "/", "the code has left the address"
        self.ask("second-use", back[0][len(self.origin):])
        with self.context.expect_page() as opened:
            page.get_by_role("link", name="Install at GitHub").click()
        opened.value.get_by_role("button", name="Install").click()
        expect(opened.value.locator("h1")).to_have_text("Installed")
        self.look("4-installed", "Ostler is connected")


def main():
    scenario, link, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    browser = os.environ.get("OSTLER_BROWSER") or shutil.which("chromium") or sys.exit(
        "Chromium is needed (Debian: apt-get install chromium); OSTLER_BROWSER names another one"
    )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        operator = Operator(context, folder)
        operator.begin(link)
        {"cancel": operator.cancel, "whole": operator.whole}[scenario]()
        chromium.close()
    print(json.dumps(operator.seen))


main()
