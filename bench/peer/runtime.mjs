// What Lambda's Node runtime does for a handler, and no more: asks the Runtime API for work, calls the handler,
// hands its answer over. Lambda's own does more at the start (extensions, X-Ray, its own patches), so that start-up
// measured with this favours the handler.
//
// Three things are not Lambda's. `BENCH_LAYER` stands in for /opt, which only root may write to. `BENCH_GITHUB` is the
// address of the local GitHub for whatever goes to https://github.test: plain HTTP, as the other side of the comparison
// has it. And logs are written as JSON, as with the function's JSON log format, which costs less than formatting them.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const { AWS_LAMBDA_RUNTIME_API, _HANDLER, BENCH_CODE, BENCH_LAYER, BENCH_GITHUB } = process.env;
const INVOCATION = `http://${AWS_LAMBDA_RUNTIME_API}/2018-06-01/runtime/invocation`;
const REMOTE = "https://github.test/";

const errors = (_, value) => (value instanceof Error ? { ...value, name: value.name, message: value.message } : value);
for (const level of ["log", "info", "warn", "error", "debug"]) {
  console[level] = (message) => process.stdout.write(`${JSON.stringify({ level, message }, errors)}\n`);
}

const read = fs.readFileSync;
fs.readFileSync = (file, ...rest) =>
  read(typeof file === "string" && file.startsWith("/opt/") ? path.join(BENCH_LAYER, file.slice(5)) : file, ...rest);

const send = globalThis.fetch;
globalThis.fetch = async (address, ...rest) => {
  const url = String(address);
  if (!url.startsWith(REMOTE)) return send(address, ...rest);
  const answer = await send(BENCH_GITHUB + url.slice(REMOTE.length - 1), ...rest);
  // A list's next page is at the address that it was asked at: by it the client knows how to sign the request.
  const link = answer.headers.get("link");
  if (link === null) return answer;
  const headers = new Headers(answer.headers);
  headers.set("link", link.replaceAll(BENCH_GITHUB, REMOTE.slice(0, -1)));
  return new Response(answer.body, { status: answer.status, headers });
};

const [file, name] = _HANDLER.split(".");
const handler = createRequire(import.meta.url)(path.join(BENCH_CODE, `${file}.js`))[name];

const described = (error) =>
  JSON.stringify({ errorType: error?.name ?? "Error", errorMessage: error?.message ?? String(error) });

for (;;) {
  const next = await send(`${INVOCATION}/next`);
  const id = next.headers.get("lambda-runtime-aws-request-id");
  const event = await next.json();
  let answer;
  try {
    const body = JSON.stringify((await handler(event, { awsRequestId: id })) ?? null);
    answer = [`${INVOCATION}/${id}/response`, body];
  } catch (error) {
    answer = [`${INVOCATION}/${id}/error`, described(error)];
  }
  const taken = await send(answer[0], { method: "POST", body: answer[1] });
  await taken.arrayBuffer();
}
