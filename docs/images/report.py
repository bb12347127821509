"""The picture of a report's page: `python docs/images/report.py PAGE.html` (needs playwright and a chromium)."""

import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

page_path, picture = Path(sys.argv[1]), Path(__file__).with_suffix(".png")
with sync_playwright() as driver:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
    page = browser.new_page(viewport={"width": 1080, "height": 2400})
    page.goto(page_path.resolve().as_uri())
    box = page.locator("#curves svg.chart").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])
    first, last = page.locator("#curves").bounding_box(), page.locator("#clients .pair").bounding_box()
    page.screenshot(
        path=picture, clip={"x": 0, "y": first["y"] - 12, "width": 1080, "height": last["y"] - first["y"] + 12}
    )
    browser.close()
# A few colours are all there are: a palette makes the file small.
Image.open(picture, formats=["PNG"]).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)
