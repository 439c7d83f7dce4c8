// Runs cascades, with parts kept loaded and freed, and whole models: a task of JSON in each line; outputs and counts of
// sessions out.
import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { basename } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array };

const json = (values) =>
  Object.fromEntries(
    Object.entries(values).map(([name, { type, dims, data }]) => {
      const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
      return [name, { type, dims, data: bytes.toString("base64") }];
    }),
  );

async function wholeModel(ort, path, inputs, session) {
  const data = existsSync(`${path}.data`) ? [`${path}.data`] : [];
  const externalData = data.map((file) => ({ path: basename(file), data: readFileSync(file) }));
  const whole = await ort.InferenceSession.create(readFileSync(path), { ...session, externalData });
  return json(await whole.run(inputs));
}

async function cascade(ort, address, inputs, keep, session) {
  let alive = 0, most = 0, opened;
  const counting = {
    InferenceSession: {
      async create(...words) {
        const made = await ort.InferenceSession.create(...words);
        most = Math.max(most, (alive += 1));
        return { run: (fed) => made.run(fed), release: () => ((alive -= 1), made.release()) };
      },
    },
  };
  try {
    const { openCascade } = await import(new URL("runner.mjs", address));
    opened = await openCascade(counting, address, { keep, session });
    await opened.run(inputs);
    const outputs = json(await opened.run(inputs));
    await opened.close();
    return { outputs, most, alive };
  } catch (error) {
    await opened?.close();
    return { error: error.message, alive };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  const ort = await import(pathToFileURL(createRequire(task.packages).resolve(task.engine)));
  const inputs = Object.fromEntries(
    Object.entries(task.inputs).map(([name, { type, dims, data }]) => [
      name,
      new ort.Tensor(type, new ARRAYS[type](new Uint8Array(Buffer.from(data, "base64")).buffer), dims),
    ]),
  );
  const session = { graphOptimizationLevel: task.optimize };
  const kept = await cascade(ort, task.cascade, inputs, true, session);
  const freed = await cascade(ort, task.cascade, inputs, false, session);
  const whole = task.model && (await wholeModel(ort, task.model, inputs, session));
  console.log(JSON.stringify({ kept, freed, whole }));
}
process.exit(0); // threads of WebAssembly would go on
