// Runs a cascade of graphcut with ONNX Runtime: onnxruntime-node, or onnxruntime-web in a browser.
//
//   import * as ort from "onnxruntime-web";
//   import { openCascade } from "./runner.mjs";
//   const cascade = await openCascade(ort, new URL("cascade.json", import.meta.url));
//   const outputs = await cascade.run({ x: new ort.Tensor("float32", values, [1, 64]) });

const FORMAT = "graphcut.cascade/1";
const BLOCK_BYTES = 8 * 1024 * 1024; // of a digest, fixed by the format

/**
 * Opens a cascade by the URL of its manifest (`file:`, `https:`). Files of a part are read when it is first loaded, and
 * compared with their digests in the manifest.
 *
 * keep: parts stay loaded. Otherwise each is loaded, run and freed, so that one part at a time takes memory.
 * onPart: called with (index, "load" | "run" | "free") before each step.
 * session: options for each InferenceSession, such as { executionProviders: ["webgpu"] }.
 */
export async function openCascade(ort, url, { keep = true, onPart = () => {}, session = {} } = {}) {
  const manifest = JSON.parse(new TextDecoder().decode(await bytesAt(new URL(url))));
  if (manifest.format !== FORMAT && !`${manifest.format}`.startsWith(`${FORMAT}.`)) throw new Error(`${url} has the format ${manifest.format} instead of ${FORMAT}`);
  return new Cascade(ort, url, manifest, { keep, onPart, session });
}

class Cascade {
  #sessions = new Map();

  constructor(ort, url, manifest, options) {
    Object.assign(this, { ort, url, manifest, ...options });
    this.lastReader = new Map(manifest.parts.flatMap((part, i) => part.reads.map((name) => [name, i])));
    for (const name of manifest.writes) this.lastReader.set(name, Infinity);
  }

  /** The outputs of the model, by name; `inputs` are tensors by name. */
  async run(inputs) {
    const { reads, optional, writes, parts } = this.manifest;
    const values = new Map(Object.entries(inputs));
    const missing = reads.find((name) => !values.has(name) && !optional.includes(name));
    if (missing !== undefined) throw new Error(`the input '${missing}' is missing`);
    for (const [i, part] of parts.entries()) {
      const session = await this.#load(i, part);
      this.onPart(i, "run");
      try {
        const fed = part.reads.filter((name) => values.has(name)).map((name) => [name, values.get(name)]);
        const outputs = await session.run(Object.fromEntries(fed));
        for (const name of part.writes) values.set(name, outputs[name]);
      } finally {
        if (!this.keep) await this.#free(i);
      }
      for (const name of values.keys()) if (!(this.lastReader.get(name) > i)) values.delete(name);
    }
    return Object.fromEntries(writes.map((name) => [name, values.get(name)]));
  }

  /** Frees the parts that are loaded. */
  async close() {
    for (const i of [...this.#sessions.keys()]) await this.#free(i);
  }

  async #load(i, part) {
    if (!this.#sessions.has(i)) {
      this.onPart(i, "load");
      this.#sessions.set(i, await createSession(this.ort, this.url, part, this.session));
    }
    return this.#sessions.get(i);
  }

  async #free(i) {
    this.onPart(i, "free");
    const session = this.#sessions.get(i);
    this.#sessions.delete(i);
    await session.release();
  }
}

/** Loads a part from bytes whose digests were compared: neither a folder nor a server has to be trusted after that. */
async function createSession(ort, base, part, options) {
  const model = await bytesAt(inside(base, part.file));
  if ((await sha256(model)) !== part.sha256) throw changed(part.file);
  const externalData = [];
  for (const [path, expected] of Object.entries(part.data)) {
    const data = await bytesAt(inside(base, path));
    if (data.length !== expected.bytes || !(await hasBlocks(data, expected.digest))) throw changed(path);
    externalData.push({ path, data });
  }
  return ort.InferenceSession.create(model, { ...options, externalData });
}

async function hasBlocks(data, { ranges, blocks }) {
  const pieces = ranges.map(([start, length]) => data.subarray(start, start + length));
  const read = pieces.length === 1 ? pieces[0] : new Uint8Array(await new Blob(pieces).arrayBuffer());
  for (let i = 0; i * BLOCK_BYTES < read.length; i++)
    if ((await sha256(read.subarray(i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES))) !== blocks[i]) return false;
  return true;
}

async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) throw new Error("digests need a page that was loaded over https or from localhost");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return "sha256:" + Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function bytesAt(url) {
  if (url.protocol === "file:") return new Uint8Array(await (await import("node:fs/promises")).readFile(url));
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} can't be read: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** The URL of a file that the manifest names. One outside its folder is refused. */
function inside(base, path) {
  const names = path.split("/");
  if (names.some((name) => ["", ".", ".."].includes(name))) throw new Error(`'${path}' is outside the manifest's folder`);
  return new URL(names.map(encodeURIComponent).join("/"), base);
}

function changed(path) {
  return new Error(`${path} was changed after the model was cut`);
}
