// The browser's side of ci/report-check.sh: node check.mjs BROWSER REPORT SCREENSHOTS
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, report, shots] = process.argv.slice(2);
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const page_url = pathToFileURL(report).href;
const wrong = [];

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
for (const width of [390, 1280]) {
  for (const colorScheme of ["light", "dark"]) {
    const name = `${width}-${colorScheme}`;
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
    page.on("request", (request) => {
      const url = request.url();
      if (url !== page_url && !url.startsWith("data:")) wrong.push(`${name}: loads ${url}`);
    });
    page.on("pageerror", (error) => wrong.push(`${name}: ${error.message}`));
    await page.goto(page_url);
    await page.screenshot({ path: join(shots, `report-${name}.png`), fullPage: true });
    const found = await page.evaluate(() => {
      const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
      return {
        wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        scripts: document.querySelectorAll("script, [onclick], [onload]").length,
        twice: ids.filter((id, i) => ids.indexOf(id) !== i),
        dead: [...document.querySelectorAll('a[href^="#"]')].filter((a) => !document.getElementById(a.hash.slice(1))).map((a) => a.hash),
        paper: getComputedStyle(document.body).backgroundColor,
        tables: document.querySelectorAll("table").length,
      };
    });
    if (found.wider > 0) wrong.push(`${name}: ${found.wider} px wider than the page`);
    if (found.scripts > 0) wrong.push(`${name}: ${found.scripts} scripts`);
    if (found.twice.length > 0) wrong.push(`${name}: ids used twice: ${found.twice.slice(0, 5).join(", ")}`);
    if (found.dead.length > 0) wrong.push(`${name}: links to nothing: ${found.dead.join(", ")}`);
    if (found.tables === 0) wrong.push(`${name}: no table`);
    const [red] = found.paper.match(/\d+/g).map(Number);
    if (red > 127 !== (colorScheme === "light")) wrong.push(`${name}: the page is ${found.paper}`);
    await page.evaluate(axe);
    const { violations, passes } = await page.evaluate(() => axe.run());
    if (passes.length === 0) wrong.push(`${name}: axe checked nothing`);
    for (const violation of violations) {
      wrong.push(`${name}: ${violation.id}: ${violation.help} (${violation.nodes.map((node) => node.target).slice(0, 3).join("; ")})`);
    }
    console.error(`${name}: ${passes.length} rules passed, ${violations.length} violated`);
    await page.close();
  }
}
await browser.close();
for (const line of wrong) console.log(line);
process.exit(wrong.length > 0 ? 1 : 0);
