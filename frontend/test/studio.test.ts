import { describe, expect, it } from "vitest";
import { sentence } from "../src/studio/api";

describe("what the server says", () => {
  it("becomes a sentence", () => {
    expect(sentence("there is no run 'x' here")).toBe("There is no run 'x' here.");
    expect(sentence("Is it there?")).toBe("Is it there?");
  });
  it("keeps names of runs and files as they are written", () => {
    expect(sentence("my-run cannot be read: it is empty")).toBe("my-run cannot be read: it is empty.");
    expect(sentence("heads.jsonl of x leads out")).toBe("heads.jsonl of x leads out.");
  });
});
