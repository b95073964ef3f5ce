// One ES module for every host, and one for the studio's page. The same sources always give the same bytes.
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.env.REGARD_STATIC ?? join(here, "../src/regard/views/static");
const entries = { regard: "src/index.ts", studio: "src/studio/index.ts" };

for (const [name, entry] of Object.entries(entries)) {
  if (!existsSync(join(here, entry))) continue;
  await build({
    absWorkingDir: here,
    entryPoints: [entry],
    outfile: join(output, `${name}.js`),
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: true,
    charset: "utf8",
    legalComments: "none",
    loader: { ".css": "text" },
    logLevel: "warning",
  });
}
