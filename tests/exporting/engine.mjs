// Runs a cascade, with parts kept loaded and freed, and a whole model: JSON in; outputs and counts of sessions out.
import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";

const task = JSON.parse(readFileSync(0));
const require = createRequire(task.packages);
const ort = await import(pathToFileURL(require.resolve(task.engine)));
const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array };
const inputs = Object.fromEntries(
  Object.entries(task.inputs).map(([name, { type, dims, data }]) => [
    name,
    new ort.Tensor(type, new ARRAYS[type](new Uint8Array(Buffer.from(data, "base64")).buffer), dims),
  ]),
);
const session = { graphOptimizationLevel: task.optimize };

let alive = 0, most = 0;
const counting = {
  InferenceSession: {
    async create(...words) {
      const made = await ort.InferenceSession.create(...words);
      most = Math.max(most, (alive += 1));
      return { run: (fed) => made.run(fed), release: () => ((alive -= 1), made.release()) };
    },
  },
};

const json = (values) =>
  Object.fromEntries(
    Object.entries(values).map(([name, { type, dims, data }]) => {
      const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
      return [name, { type, dims, data: bytes.toString("base64") }];
    }),
  );

async function wholeModel(path) {
  const data = existsSync(`${path}.data`) ? [`${path}.data`] : [];
  const externalData = data.map((file) => ({ path: basename(file), data: readFileSync(file) }));
  const whole = await ort.InferenceSession.create(readFileSync(path), { ...session, externalData });
  return json(await whole.run(inputs));
}

async function cascade(keep) {
  most = 0;
  let opened;
  try {
    const { openCascade } = await import(new URL("runner.mjs", task.cascade));
    opened = await openCascade(counting, task.cascade, { keep, session });
    await opened.run(inputs);
    const outputs = json(await opened.run(inputs));
    await opened.close();
    return { outputs, most, alive };
  } catch (error) {
    await opened?.close();
    return { error: error.message, alive };
  }
}

const answers = { kept: await cascade(true), freed: await cascade(false) };
console.log(JSON.stringify({ ...answers, whole: task.model && (await wholeModel(task.model)) }));
