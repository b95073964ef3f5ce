import { defineConfig } from "vitest/config";

export default defineConfig({ test: { environment: "jsdom", isolate: false, include: ["test/**/*.test.ts"] } });
