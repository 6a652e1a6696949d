/** Photos ⇄ pixels by the browser's own decoders. */
import { crc32 } from "./container";
import type { Photo } from "./codec";
import { FinolaError } from "./errors";

const MAX_PIXELS = 2e6; // larger photos are scaled down: the network on pixels takes seconds per megapixel
const MAX_SIDE = 8192;

/** Pixels of a photo in sRGB, upright, over white where it is transparent. `scaled` is its size if it was too large. */
export async function photoOf(file: Blob, name: string): Promise<{ photo: Photo; scaled?: string }> {
  const image = await createImageBitmap(file).catch(() => {
    throw new FinolaError(`${name} cannot be read as a photo: choose a JPEG, PNG, WebP, AVIF or .finola file.`);
  });
  const factor = Math.min(1, Math.sqrt(MAX_PIXELS / (image.width * image.height)), MAX_SIDE / image.width, MAX_SIDE / image.height);
  const width = Math.max(1, Math.round(image.width * factor));
  const height = Math.max(1, Math.round(image.height * factor));
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  const scaled = factor < 1 ? `${image.width} × ${image.height}` : undefined;
  image.close();
  const photo = { width, height, pixels: context.getImageData(0, 0, width, height).data };
  return { photo, ...(scaled && { scaled }) };
}

export function canvasOf({ width, height, pixels }: Photo): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d")!.putImageData(new ImageData(pixels as Uint8ClampedArray<ArrayBuffer>, width, height), 0, 0);
  return canvas;
}

/** Convert pixels from the colour space of an ICC profile to sRGB: the browser decodes a PNG with that profile. */
export async function withProfile(photo: Photo, icc: Uint8Array): Promise<HTMLCanvasElement> {
  const canvas = canvasOf(photo);
  const plain = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
  if (!plain) return canvas;
  const png = new Uint8Array(await plain.arrayBuffer());
  const deflated = new Blob([icc.slice()]).stream().pipeThrough(new CompressionStream("deflate"));
  const compressed = new Uint8Array(await new Response(deflated).arrayBuffer());
  const head = new TextEncoder().encode("iCCPicc\0\0"); // type, name of the profile, method
  const chunk = new Uint8Array(4 + head.length + compressed.length + 4);
  const view = new DataView(chunk.buffer);
  view.setUint32(0, head.length - 4 + compressed.length);
  chunk.set(head, 4);
  chunk.set(compressed, 4 + head.length);
  view.setUint32(chunk.length - 4, crc32(chunk.subarray(4, chunk.length - 4)));
  const start = 33; // after the signature and the header chunk
  // Chromium writes an sRGB chunk, which must not stand beside a profile.
  const rest = withoutChunk(png.subarray(start), "sRGB");
  const converted = await createImageBitmap(new Blob([png.slice(0, start), chunk, rest])).catch(() => undefined);
  if (converted) canvas.getContext("2d")!.drawImage(converted, 0, 0); // a profile that the browser rejects is ignored
  return canvas;
}

function withoutChunk(chunks: Uint8Array, type: string): Blob {
  const kept: Uint8Array<ArrayBuffer>[] = [];
  for (let at = 0; at < chunks.length; ) {
    const length = 12 + new DataView(chunks.buffer, chunks.byteOffset + at, 4).getUint32(0);
    if (String.fromCharCode(...chunks.subarray(at + 4, at + 8)) !== type) kept.push(chunks.slice(at, at + length));
    at += length;
  }
  return new Blob(kept);
}
