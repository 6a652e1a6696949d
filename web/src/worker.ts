/** Runs the codec beside the page, so that the page stays responsive. */
import { sha256 } from "@noble/hashes/sha2.js";
import { MODEL, loadAssets } from "./assets";
import { Codec, type Coded, type Photo, hex, psnr } from "./codec";
import { FinolaError } from "./errors";
import { type Corrector, type Graphs, Network } from "./network";
import type { Growth, Reply, Request, Summary } from "./protocol";

const PARALLEL_PIXELS = 6e5; // photos from this size on are corrected by several workers
const MAX_HELPERS = 3;

const worker = self as unknown as Worker; // the types of the page have none of a worker's own scope
const reply = (message: Reply, transfer: Transferable[] = []) => worker.postMessage(message, transfer);

let newest = 0; // job
let photo: Photo | undefined; // undefined for an opened file
let coordinates: Float32Array | undefined;
let coded: Coded | undefined;
let helpers: Promise<Corrector[]> | undefined;

interface Loaded {
  codec: Codec;
  network: Network;
  graphs: Graphs;
  model: ArrayBuffer;
}

async function start(): Promise<Loaded> {
  const files = await loadAssets(["codec", "model", "correction", "product", "runtime"], (loaded, total) =>
    reply({ kind: "loading", loaded, total }),
  );
  const name = new TextEncoder().encode(MODEL.name);
  const hash = (await digest(new Uint8Array(await new Blob([files.codec, files.model, name]).arrayBuffer()))).slice(0, 4);
  const graphs = { wasm: files.runtime, correction: files.correction, product: files.product };
  const starting = Network.create(graphs, files.model); // compiled on other threads meanwhile
  const codec = new Codec({ ...MODEL, hash, codec: files.codec, model: files.model });
  const network = await starting;
  reply({ kind: "ready", model: MODEL.id, hash: hex(hash) });
  return { codec, network, graphs, model: files.model };
}

/** SHA-256, by the browser itself where it allows that: not on plain HTTP. */
async function digest(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  return self.crypto.subtle ? new Uint8Array(await self.crypto.subtle.digest("SHA-256", bytes)) : sha256(bytes);
}

async function handle(request: Request, { codec, network, graphs, model }: Loaded): Promise<void> {
  switch (request.kind) {
    case "photo":
      [photo, coordinates, coded] = [request.photo, undefined, undefined];
      return rebuild(request.job, request.quality);
    case "quality":
      return rebuild(request.job, request.quality);
    case "file": {
      const opened = await codec.read(request.file);
      if (await superseded(request.job)) return; // the photo before stays open
      [photo, coordinates, coded] = [undefined, undefined, opened];
      return show(request.job, request.file.slice());
    }
    case "frame":
      if (coded) {
        const drawn = await frame(codec, coded, request.growth, request.value);
        reply({ kind: "frame", job: request.job, photo: drawn }, [drawn.pixels.buffer]);
      }
      return;
    case "integers":
      if (coded) reply({ kind: "integers", job: request.job, integers: coded });
      return;
  }

  async function rebuild(job: number, quality: number): Promise<void> {
    if (!photo || (await superseded(job))) return;
    if (photo.width * photo.height >= PARALLEL_PIXELS) helpers ??= startHelpers(graphs, model);
    coordinates ??= await codec.analyse(photo, network);
    coded = await codec.quantise(coordinates, photo, quality, network);
    await show(job, codec.write(coded));
  }

  /** Send the file, a preview without the network on pixels, and the picture. */
  async function show(job: number, file: Uint8Array<ArrayBuffer>): Promise<void> {
    if (!coded) return;
    reply({ kind: "coded", job, file, summary: summarise(codec, coded) });
    if (coded.width * coded.height >= PARALLEL_PIXELS) helpers ??= startHelpers(graphs, model);
    const linear = await codec.synthesise(coded, network);
    send(codec.draw(linear, coded, false), false);
    if (await superseded(job)) return;
    const correctors = [network.correct, ...(helpers ? await helpers : [])];
    send(codec.draw(await codec.correct(linear, coded, correctors), coded, true), true);

    function send(drawn: Photo, final: boolean): void {
      const fidelity = photo && psnr(photo, drawn);
      reply({ kind: "picture", job, photo: drawn, final, psnr: fidelity, icc: coded?.icc }, [drawn.pixels.buffer]);
    }
  }
}

/** Whether a later job has arrived; lets messages in. */
async function superseded(job: number): Promise<boolean> {
  await new Promise((resolve) => setTimeout(resolve));
  return job < newest;
}

/** A picture on its way, before the network on pixels: with the first latents of every tile, or with the positions that
 * the recurrence has reached after some steps. */
async function frame(codec: Codec, file: Coded, growth: Growth, value: number): Promise<Photo> {
  const { network } = await loading;
  if (growth === "latents") return codec.draw(await codec.synthesise(file, network, value), file, false);
  const drawn = codec.draw(await codec.synthesise(file, network), file, false);
  codec.hideBeyond(drawn, value);
  return drawn;
}

function summarise(codec: Codec, { width, height, tiles }: Coded): Summary {
  const sizes = tiles.map(({ values }) => values.length);
  const used = tiles.filter(({ values }) => values.length).map(({ basis }) => basis);
  const largest = sizes.reduce((most, size) => Math.max(most, size), 0);
  return {
    width,
    height,
    tiles: tiles.length,
    latents: sizes.reduce((sum, size) => sum + size, 0),
    bases: new Set(used).size,
    lengths: codec.lengths.filter((length) => length <= largest),
    steps: codec.steps,
  };
}

/** Workers that run the network on pixels on further cores. */
async function startHelpers(graphs: Graphs, model: ArrayBuffer): Promise<Corrector[]> {
  const count = Math.min(MAX_HELPERS, (navigator.hardwareConcurrency || 1) - 1);
  const started = Array.from({ length: count }, () => startHelper(graphs, model).catch(() => undefined));
  return (await Promise.all(started)).filter((helper) => helper !== undefined);
}

function startHelper(graphs: Graphs, model: ArrayBuffer): Promise<Corrector> {
  const helper = new Worker(self.location.href, { type: "module", name: "helper" });
  const ask = (message: unknown, transfer: Transferable[] = []) =>
    new Promise<Float32Array<ArrayBuffer>>((resolve, reject) => {
      helper.onmessage = ({ data }) => resolve(data);
      helper.onerror = () => reject(new FinolaError("A part of the photo could not be decoded: reload the page."));
      helper.postMessage(message, transfer);
    });
  return ask({ graphs, model }).then(() => (image, height, width) => ask({ image, height, width }, [image.buffer]));
}

function serveAsHelper(): void {
  let network: Network;
  worker.onmessage = async ({ data }) => {
    if (data.graphs) {
      network = await Network.create(data.graphs, data.model);
      worker.postMessage(undefined);
    } else {
      const corrected = await network.correct(data.image, data.height, data.width);
      worker.postMessage(corrected, [corrected.buffer]);
    }
  };
}

function serveThePage(): void {
  let queue: Promise<unknown> = loading.catch((error) => report(error, 0));
  worker.onmessage = ({ data }: MessageEvent<Request>) => {
    newest = Math.max(newest, data.job);
    queue = queue.then(async () => {
      try {
        await handle(data, await loading);
      } catch (error) {
        report(error, data.job);
      }
    });
  };
}

function report(error: unknown, job: number): void {
  const message = error instanceof FinolaError ? error.message : `Something failed in this browser: ${error}.`;
  reply({ kind: "error", job, message });
}

const isHelper = (self as { name?: string }).name === "helper";
const loading: Promise<Loaded> = isHelper ? new Promise(() => undefined) : start();
if (isHelper) serveAsHelper();
else serveThePage();
