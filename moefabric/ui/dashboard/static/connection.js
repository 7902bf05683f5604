// The token, the stream of changes, and commands.

const TOKEN = "moefabric-token";
const RETRY_MS = [500, 1000, 2000, 5000];

/** Takes the token of a link such as `/#token=...`, so that it stays out of history and address. */
export function takeTokenFromLink() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    sessionStorage.setItem(TOKEN, token);
    history.replaceState(null, "", location.pathname);
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));
export const setToken = (token) => sessionStorage.setItem(TOKEN, token);
export const dropToken = () => sessionStorage.removeItem(TOKEN);

function request(path, options = {}) {
  const authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  return fetch(path, { ...options, headers: { ...options.headers, Authorization: authorization } });
}

/** Returns the JSON of a reply; an error has the server's text. */
async function json(reply) {
  const value = await reply.json();
  if (!reply.ok) throw new Error(value.error ?? reply.statusText);
  return value;
}

export const get = async (path) => json(await request(path));

export const post = async (path, value) => json(await request(path, {
  method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" },
}));

/** Splits a body into server-sent events. EventSource can't send the token as a header. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(name))?.slice(name.length);
      const topic = field("event: ");
      if (topic) yield [topic, JSON.parse(field("data: "))];
    }
  }
}

/**
 * Follows a fabric until `signal` aborts, and connects again after a loss.
 *
 * @param fabric its name, or "" for the names of the fabrics only
 * @param signal ends the stream
 * @param onChange called with topic and value
 * @param onState called with "up", "lost" or "refused"
 */
export async function follow(fabric, signal, onChange, onState) {
  for (let failures = 0; !signal.aborted; failures += 1) {
    try {
      const reply = await request(`api/stream?fabric=${encodeURIComponent(fabric)}`, { signal });
      if (reply.status === 401) return onState("refused");
      if (!reply.ok) throw new Error(reply.statusText);
      onState("up");
      failures = 0;
      for await (const [topic, value] of events(reply.body)) {
        if (signal.aborted) return;
        onChange(topic, value);
      }
    } catch {
      if (signal.aborted) return;
    }
    onState("lost");
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
