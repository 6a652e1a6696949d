// Bundle the page into FOLDER, beside the assets that assets.py has written there: node build.mjs FOLDER
import { createHash } from "node:crypto";
import { copyFileSync, cpSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = process.argv[2]; // relative to this file's folder if npm runs it
if (!folder) throw new Error("Usage: node build.mjs FOLDER");
const here = dirname(fileURLToPath(import.meta.url));
const assets = JSON.parse(readFileSync(join(folder, "assets", "assets.json"), "utf8"));

const runtime = join(here, "node_modules", "onnxruntime-web", "dist", "ort-wasm-simd-threaded.wasm");
const bytes = readFileSync(runtime);
const name = `onnxruntime-${createHash("sha256").update(bytes).digest("hex").slice(0, 12)}.wasm`;
copyFileSync(runtime, join(folder, "assets", name));
assets.files.runtime = { name, bytes: bytes.length };

const options = {
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  define: { ASSETS: JSON.stringify(assets) },
};
await build({ ...options, entryPoints: [join(here, "src", "worker.ts")], outfile: join(folder, "worker.js") });
// The worker's address changes with its contents, so that a browser never combines a new page with an old worker.
const version = createHash("sha256").update(readFileSync(join(folder, "worker.js"))).digest("hex").slice(0, 12);
await build({
  ...options,
  entryPoints: [join(here, "src", "main.ts")],
  outfile: join(folder, "main.js"),
  define: { ...options.define, WORKER: JSON.stringify(`worker.js?${version}`) },
});
const page = readFileSync(join(here, "index.html"), "utf8");
const main = createHash("sha256").update(readFileSync(join(folder, "main.js"))).digest("hex").slice(0, 12);
writeFileSync(join(folder, "index.html"), page.replace("main.js", `main.js?${main}`));
cpSync(join(here, "style.css"), join(folder, "style.css"));
// Tests compare this with the sources, so that they never run on an outdated page.
const sources = ["index.html", "style.css", "build.mjs", "assets.py", "package.json", ...readdirSync(join(here, "src")).map((file) => `src/${file}`)];
const hash = createHash("sha256");
for (const source of sources.sort()) hash.update(readFileSync(join(here, source)));
writeFileSync(join(folder, "assets", "sources.txt"), `${hash.digest("hex")}\n`);
console.log(`Built the page in ${folder}`);
