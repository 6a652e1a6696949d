/** The page: reads photos and files, talks to the worker and shows what it sends. */
import { assetUrl } from "./assets";
import type { Photo } from "./codec";
import { FinolaError } from "./errors";
import { Player } from "./growth";
import { canvasOf, photoOf, withProfile } from "./photos";
import type { Integers, Reply, Request, Summary } from "./protocol";

declare const WORKER: string;
const MAX_FILE = 100e6;

const element = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;
const viewer = element("viewer");
const rebuilt = element<HTMLCanvasElement>("rebuilt");
const original = element<HTMLCanvasElement>("original");
const split = element<HTMLInputElement>("split");
const quality = element<HTMLInputElement>("quality");
const status = element("status");

type Distribute<T> = T extends unknown ? Omit<T, "job"> : never;
const worker = new Worker(WORKER, { type: "module", name: "codec" });
let job = 0;
const ask = (request: Distribute<Request>): number => {
  worker.postMessage({ ...request, job: ++job });
  return job;
};

let name = "photo"; // of the photo, without suffix
let note = ""; // what was done to the photo when it was opened
let opened = 0; // job that opened the photo or file on show
let incoming: { job: number; name: string } | undefined; // the last `.finola` file, on show once it is decoded
let asked = 0; // time of the last request for a picture
let final: HTMLCanvasElement | undefined; // the complete reconstruction
const waiting = new Map<number, (integers: Integers) => void>();

const player = new Player((growth, value) => ask({ kind: "frame", growth, value }), () => final && show(final));

worker.onerror = () => say("This browser cannot run the codec: it needs WebAssembly with SIMD and module workers.", true);
worker.onmessage = async ({ data }: MessageEvent<Reply>) => {
  switch (data.kind) {
    case "loading":
      element<HTMLProgressElement>("progress").value = data.loaded / data.total;
      say(`Loading the model and onnxruntime-web, ${(data.total / 1e6).toFixed(0)} MB, once`);
      break;
    case "ready":
      element("progress").hidden = true;
      break;
    case "error":
      element("progress").hidden = true;
      say(data.message, true);
      viewer.classList.remove("busy");
      if (data.job === job && final) player.ready(); // the picture before stays on show
      break;
    case "coded":
      if (data.job === job) showFile(data.file, data.summary);
      break;
    case "picture":
      if (data.job === job) await showPicture(data);
      break;
    case "frame":
      if (data.job === job) {
        show(canvasOf(data.photo));
        player.shown();
      }
      break;
    case "integers":
      waiting.get(data.job)?.(data.integers);
      waiting.delete(data.job);
      break;
  }
};

function showFile(file: Uint8Array<ArrayBuffer>, summary: Summary): void {
  const { width, height } = summary;
  final = undefined;
  if (incoming?.job === job) {
    opened = job;
    name = incoming.name;
    note = "";
    viewer.classList.add("alone");
    split.disabled = quality.disabled = true;
    element("quality-value").textContent = "as in the file";
  }
  element("size").textContent = bytes(file.length);
  element("bpp").textContent = ((8 * file.length) / (width * height)).toFixed(3);
  element("latents").textContent = (summary.latents / summary.tiles).toFixed(1);
  link("download", new Blob([file]), `${name}.finola`);
  player.load(summary);
}

async function showPicture({ photo, final: complete, psnr, icc }: Extract<Reply, { kind: "picture" }>): Promise<void> {
  const current = job;
  const canvas = icc ? await withProfile(photo, icc) : canvasOf(photo);
  if (current !== job) return;
  show(canvas);
  viewer.classList.remove("empty");
  element("psnr").textContent = psnr === undefined ? "–" : `${psnr.toFixed(2)} dB`;
  if (!complete) {
    say(`${sizeOf(photo)}. The network on pixels corrects the tiles …`);
    return;
  }
  final = canvas;
  viewer.classList.remove("busy");
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (current !== job || !blob) return;
  link("download-png", blob, `${name}.png`);
  say(`${note}${sizeOf(photo)}, rebuilt in ${((performance.now() - asked) / 1000).toFixed(1)} s`);
  document.documentElement.dataset["rebuilt"] = String(opened);
  player.ready();
}

function show(canvas: HTMLCanvasElement): void {
  [rebuilt.width, rebuilt.height] = [canvas.width, canvas.height];
  viewer.style.setProperty("--aspect", String(canvas.width / canvas.height));
  viewer.style.setProperty("--native", `${canvas.width}px`);
  rebuilt.getContext("2d")!.drawImage(canvas, 0, 0);
}

/** Open a photo or a `.finola` file. */
async function open(file: Blob, fileName: string): Promise<void> {
  try {
    if (file.size > MAX_FILE) throw new FinolaError(`${fileName} has ${bytes(file.size)}; this page opens files of at most 100 MB.`);
    if (/\.finola$/i.test(fileName)) await openFinola(file, fileName);
    else await openPhoto(file, fileName);
  } catch (error) {
    say(error instanceof FinolaError ? error.message : `${fileName} could not be opened: ${error}.`, true);
  }
}

async function openFinola(file: Blob, fileName: string): Promise<void> {
  const contents = new Uint8Array(await file.arrayBuffer());
  wait();
  incoming = { job: ask({ kind: "file", file: contents }), name: stem(fileName) };
}

async function openPhoto(file: Blob, fileName: string): Promise<void> {
  const { photo, scaled } = await photoOf(file, fileName);
  name = stem(fileName);
  note = scaled ? `Scaled down from ${scaled}. ` : "";
  wait();
  const canvas = canvasOf(photo);
  [original.width, original.height] = [canvas.width, canvas.height];
  original.getContext("2d")!.drawImage(canvas, 0, 0);
  viewer.classList.remove("alone");
  split.disabled = quality.disabled = false;
  element("quality-value").textContent = quality.value;
  opened = ask({ kind: "photo", photo, quality: Number(quality.value) });
}

function stem(fileName: string): string {
  return fileName.replace(/\.[^.]*$/, "") || "photo";
}

/** Until the next picture. */
function wait(): void {
  asked = performance.now();
  say("Rebuilding …");
  player.stop();
  viewer.classList.add("busy");
}

function say(text: string, alarm = false): void {
  status.textContent = text;
  status.classList.toggle("alarm", alarm);
}

function link(id: string, blob: Blob, download: string): void {
  const anchor = element<HTMLAnchorElement>(id);
  if (anchor.href) URL.revokeObjectURL(anchor.href);
  anchor.href = URL.createObjectURL(blob);
  anchor.download = download;
  anchor.removeAttribute("aria-disabled");
}

function bytes(count: number): string {
  return count < 1000 ? `${count} bytes` : count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

function sizeOf({ width, height }: Photo): string {
  return `${name}, ${width} × ${height} pixels`;
}

quality.addEventListener("input", () => {
  element("quality-value").textContent = quality.value;
  wait();
  ask({ kind: "quality", quality: Number(quality.value) });
});
split.addEventListener("input", () => viewer.style.setProperty("--split", `${split.value}%`));
element<HTMLInputElement>("file").addEventListener("change", ({ target }) => {
  const input = target as HTMLInputElement;
  if (input.files?.[0]) void open(input.files[0], input.files[0].name);
  input.value = "";
});
for (const kind of ["dragenter", "dragover"])
  addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dragging");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  const file = event.dataTransfer?.files[0];
  if (file) void open(file, file.name);
});
addEventListener("paste", (event) => {
  const file = event.clipboardData?.files[0];
  if (file) void open(file, file.name);
});

/** For scripts: the integers of the file on show. */
function integers(): Promise<Integers> {
  return new Promise((resolve) => {
    const number = -1 - waiting.size; // supersedes no picture
    waiting.set(number, resolve);
    worker.postMessage({ kind: "integers", job: number } satisfies Request);
  });
}
Object.assign(globalThis, { finola: { integers } });

void fetch(assetUrl("photo"))
  .then((response) => response.blob())
  .then((photo) => (job === 0 ? open(photo, "astronaut.jpg") : undefined));
