// Trains a network by a file that graphgrad.step_to_onnx wrote, and draws the loss.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";

const STEPS = Number(new URLSearchParams(location.search).get("steps") ?? 300);
const NEXT = ".next";

/** The digits, as tensors of one batch after the other. */
class Digits {
  constructor({ batch, shape, images, labels }) {
    this.batch = batch;
    this.shape = shape;
    this.images = Uint8Array.from(atob(images), (character) => character.charCodeAt(0));
    this.labels = labels;
  }

  take(number) {
    const size = this.images.length / this.labels.length;
    const images = new Float32Array(this.batch * size);
    const labels = new BigInt64Array(this.batch);
    for (let i = 0; i < this.batch; i++) {
      const chosen = (number * this.batch + i) % this.labels.length;
      for (let k = 0; k < size; k++) {
        images[i * size + k] = this.images[chosen * size + k] / 16;
      }
      labels[i] = BigInt(this.labels[chosen]);
    }
    return {
      input: new ort.Tensor("float32", images, [this.batch, ...this.shape]),
      targets: new ort.Tensor("int64", labels, [this.batch]),
    };
  }
}

/** Take steps; call `show` with all losses so far after each. */
async function train(steps, show) {
  const digits = new Digits(await (await fetch("digits.json")).json());
  const step = await ort.InferenceSession.create("step.onnx");
  const start = await ort.InferenceSession.create("start.onnx");
  // Parameters, statistics, the optimizer's buffers, the learning rate: what a step is given.
  const state = { ...(await start.run({})) };
  const isSeeded = step.inputNames.includes("seed"); // it has dropouts: a number for each step
  const losses = [];
  for (let number = 0; number < steps; number++) {
    const feeds = { ...digits.take(number), ...state };
    if (isSeeded) {
      feeds.seed = new ort.Tensor("int64", BigInt64Array.of(BigInt(number)), []);
    }
    const results = await step.run(feeds);
    for (const name of step.outputNames.filter((output) => output.endsWith(NEXT))) {
      state[name.slice(0, -NEXT.length)] = results[name];
    }
    losses.push(results.loss.data[0]);
    show(losses);
    await new Promise((done) => setTimeout(done)); // the page may draw
  }
  return losses;
}

function draw(losses) {
  const canvas = document.getElementById("curve");
  const context = canvas.getContext("2d");
  const [left, right, top, bottom] = [90, 20, 20, 60];
  const highest = Math.ceil(Math.max(...losses));
  const x = (number) => left + ((canvas.width - left - right) * number) / (STEPS - 1);
  const y = (loss) => top + (canvas.height - top - bottom) * (1 - loss / highest);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.font = "26px system-ui, sans-serif";
  context.fillStyle = context.strokeStyle = "#777";
  context.lineWidth = 1;
  context.beginPath();
  for (let loss = 0; loss <= highest; loss++) {
    context.moveTo(left, y(loss));
    context.lineTo(canvas.width - right, y(loss));
    context.fillText(loss, left - 40, y(loss) + 9);
  }
  context.stroke();
  context.fillText(`loss over ${STEPS} steps`, left, canvas.height - 15);
  context.strokeStyle = "#0a6";
  context.lineWidth = 4;
  context.beginPath();
  losses.forEach((loss, number) => context.lineTo(x(number), y(loss)));
  context.stroke();
}

const line = document.getElementById("line");

globalThis.trained = train(STEPS, (losses) => {
  draw(losses);
  line.textContent = `Step ${losses.length} of ${STEPS}: loss ${losses.at(-1).toFixed(4)}`;
});
globalThis.trained.catch((error) => {
  line.textContent = `${error}. Was write.py run, and npm install?`;
});
