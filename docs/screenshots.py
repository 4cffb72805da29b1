"""`python -m docs.screenshots`: takes console.png, asking.png and books.png of docs again, from the demo.

Needs the dev extra, and chromium on the path. With a folder as its argument, every page of the console is
kept there in light, dark and at the width of a phone, to be looked at.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
QUESTION = "SELECT health, COUNT(*) AS people\nFROM health\nGROUP BY health"
PAGES = {
    "home": "/",
    "ask": "/data/health",
    "history": "/data/health/history",
    "models": "/data/health/models",
    "copies": "/data/health/copies",
    "explain": "/data/health/explain",
    "books": "/steward/data/health",
    "people": "/steward/people",
    "add": "/steward/add",
}
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light"},
}


def _log_in(page: Any, server: Any, who: str) -> None:
    page.goto(server.url)
    page.fill("#token", server.tokens[who])
    page.click("button:text-is('Log in')")
    page.wait_for_selector("h1:text-is('Datasets')")


def _ask(page: Any, server: Any, text: str, epsilon: str) -> None:
    page.goto(f"{server.url}/data/health")
    page.wait_for_selector("#preview .price")
    page.evaluate("text => discreetEditor.setValue(text)", text)
    page.fill("input[name=epsilon]", epsilon)
    page.wait_for_selector(f"#preview :text('epsilon {epsilon}')")
    page.click("#run")
    page.wait_for_selector("#answer table", timeout=60_000)


def _work(server: Any) -> None:
    """Let the two analysts ask something, so that books and histories are not empty."""
    import discreet as dp

    ann, bob = (dp.connect(server.url, server.tokens[who]) for who in ("ann", "bob"))
    for column, epsilon in (("sex", 0.2), ("education", 0.3)):
        ann.sql(f"SELECT {column}, COUNT(*) AS n FROM health GROUP BY {column}", epsilon=epsilon)
    bob.sql("SELECT AVG(visits) AS visits FROM health", epsilon=0.5)
    ann.synthesize(epsilon=0.5, columns=["sex", "health"], method="mst", seconds=15)
    time.sleep(5.5)


def main() -> int:
    """Take the pictures."""
    from playwright.sync_api import sync_playwright
    from tests.web.running import Server

    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    server = Server(Path(tempfile.mkdtemp(prefix="discreet-pictures-")), rate=1000, burst=2000).start()
    try:
        _work(server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_context(**LOOKS["light"]).new_page()
            _log_in(page, server, "ann")
            _ask(page, server, QUESTION, "0.1")
            page.screenshot(path=DOCS / "console.png", full_page=True)
            # what README shows: the question, its price, and the bars of its answer
            clip = {"x": 0, "y": 0, "width": 1280, "height": 900}
            page.screenshot(path=DOCS / "asking.png", full_page=True, clip=clip)
            page.context.close()
            page = browser.new_context(**LOOKS["light"]).new_page()
            _log_in(page, server, "steward")
            page.goto(f"{server.url}/steward/data/health")
            page.click("text=Check every hash")
            page.wait_for_selector("#check .good")
            clip = {"x": 0, "y": 0, "width": 1280, "height": 1500}
            page.screenshot(path=DOCS / "books.png", full_page=True, clip=clip)
            page.context.close()
            for look, options in LOOKS.items() if kept is not None else ():
                page = browser.new_context(**options).new_page()
                _log_in(page, server, "steward")
                for name, path in PAGES.items():
                    page.goto(server.url + path)
                    page.wait_for_timeout(900)
                    page.screenshot(path=kept / f"{name}-{look}.png", full_page=True)
                page.context.close()
            browser.close()
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
