// The reader of the event stream: frames that arrive in pieces, cursors that the next request sends.
import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const asked = [];
const bodies = [];
globalThis.fetch = async (url, { signal }) => {
  asked.push(new URL(url, "http://page"));
  const body = bodies.shift();
  if (!body) return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("aborted"))));
  return { ok: true, status: 200, body: new ReadableStream({ start(stream) { for (const piece of body) stream.enqueue(new TextEncoder().encode(piece)); stream.close(); } }) };
};
const { follow } = await load("events.ts", {
  document: { hidden: false, querySelector: () => null, addEventListener: () => {} },
  localStorage: { getItem: () => "secret", setItem: () => {}, removeItem: () => {} },
});

test("whole frames are delivered in order, and a new request goes on from the last cursor", async () => {
  const found = [];
  bodies.push(
    ["event: hello\ndata: {\"version\": \"1\", \"bundle\": \"a\"}\n", "\n: ping\n\nid: {\"run:a\": \"7-10\"}\neve", "nt: run.metrics\ndata: {\"id\": \"a\", \"rows\": [1]}\n\nid: {\"run:a\": \"7-99\"}\nevent: run.met"],
  );
  const second = new Promise((resolve) => {
    const end = follow({ "run:a": "" }, (name, data) => found.push([name, data]));
    const timer = setInterval(() => {
      if (asked.length < 2) return;
      clearInterval(timer);
      end();
      resolve();
    }, 10);
  });
  await second;
  assert.deepEqual(found.map(([name]) => name), ["hello", "run.metrics"]);
  assert.deepEqual(found[1][1], { id: "a", rows: [1] });
  assert.equal(asked[0].searchParams.get("since"), "{}");
  // the frame that was torn has moved nothing
  assert.deepEqual(JSON.parse(asked[1].searchParams.get("since")), { "run:a": "7-10" });
});
