// Builds the bundle into dist: build.mjs [--watch] [--check]
//
// With --check it builds elsewhere and compares: the committed bundle must be what its sources make.
import { build, context } from "esbuild";
import { cp, mkdtemp, readFile, rm, mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const dist = path.join(here, "dist");
const isCheck = process.argv.includes("--check");
const out = isCheck ? await mkdtemp(path.join(tmpdir(), "cairn-console-")) : dist;
const FILES = ["index.html", "icon.svg", "console.js", "console.css"];

const options = {
  absWorkingDir: here,
  entryPoints: [{ in: "src/main.tsx", out: "console" }],
  bundle: true,
  format: "esm",
  target: ["es2022"],
  outdir: out,
  minify: true,
  legalComments: "none",
  banner: { js: "/* Cairn console. Includes Preact and uPlot, both MIT: NOTICE.md */" },
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
};

await mkdir(out, { recursive: true });
for (const name of ["index.html", "icon.svg"]) {
  await cp(path.join(here, "src", name), path.join(out, name));
}
if (process.argv.includes("--watch")) {
  await (await context(options)).watch();
} else {
  await build(options);
}
if (isCheck) {
  const differing = [];
  for (const name of FILES) {
    const [made, kept] = await Promise.all([readFile(path.join(out, name)), readFile(path.join(dist, name))]);
    if (!made.equals(kept)) differing.push(name);
  }
  await rm(out, { recursive: true });
  if (differing.length > 0) {
    console.error(`console: dist/${differing.join(", dist/")} is not what the sources make; run \`make console\` and commit`);
    process.exit(1);
  }
  console.log("console: dist is what the sources make");
}
