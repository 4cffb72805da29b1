"""Prints HTML pages to PDF, with a Chromium that is installed on this machine.

The pages have no scripts and refer to no other files, so nothing is loaded from the network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .._errors import InvalidInput, MissingExtra

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The time limit of one page, in seconds. Measured: a page takes two seconds; a cold start on a busy machine
# took fifteen.
_SECONDS = 90


def browser() -> str | None:
    """Return the path of the first Chromium or Chrome that is found, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def to_pdf(html: str, path: Path) -> None:
    """Print a page to a PDF file."""
    program = browser()
    if program is None:
        raise MissingExtra(
            "a PDF is printed by Chromium, which was not found. Nothing was written. Give a name that ends "
            "in .html instead, and print the page from any browser."
        )
    with tempfile.TemporaryDirectory() as folder:
        page, printed = Path(folder, "page.html"), Path(folder, "page.pdf")
        page.write_text(html, encoding="utf-8")
        command = [program, "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        # Chromium refuses to run as root with its sandbox. The sandbox guards against hostile pages; this
        # package wrote the page, and it has no script.
        command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command += ["--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()]
        # whether it succeeded shows in the file: the exit code is not read
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if not printed.is_file():
            raise InvalidInput(
                f"{program} printed nothing. Nothing was written. Give a name that ends in .html."
            )
        try:
            shutil.copyfile(printed, path)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
