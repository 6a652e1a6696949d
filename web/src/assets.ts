/** Files of the model and of onnxruntime-web: fetched once, then taken from the browser's cache. */
import { FinolaError } from "./errors";

interface Asset {
  name: string; // contains a hash of the contents
  bytes: number;
}

declare const ASSETS: {
  model: { id: string; name: string; side: number; cell: number };
  files: Record<"codec" | "model" | "correction" | "product" | "photo" | "runtime", Asset>;
};

export const MODEL = ASSETS.model;
const FOLDER = new URL("assets/", self.location.href);
const CACHE = "finola";

export function assetUrl(key: keyof typeof ASSETS.files): string {
  return new URL(ASSETS.files[key].name, FOLDER).href;
}

type Key = keyof typeof ASSETS.files;

/** Load files; `progress` is called with the bytes loaded so far and in total. */
export async function loadAssets<K extends Key>(
  keys: K[],
  progress: (loaded: number, total: number) => void,
): Promise<Record<K, ArrayBuffer>> {
  const cache = await openCache();
  const total = keys.reduce((sum, key) => sum + ASSETS.files[key].bytes, 0);
  let loaded = 0;
  const advance = (bytes: number) => progress((loaded += bytes), total);
  const buffers = await Promise.all(keys.map((key) => load(key, cache, advance)));
  return Object.fromEntries(keys.map((key, index) => [key, buffers[index]!])) as Record<K, ArrayBuffer>;
}

async function load(key: Key, cache: Cache | undefined, advance: (bytes: number) => void): Promise<ArrayBuffer> {
  const url = assetUrl(key);
  const stored = await cache?.match(url);
  if (stored) {
    const buffer = await stored.arrayBuffer();
    advance(buffer.byteLength);
    return buffer;
  }
  const response = await fetch(url).catch(() => undefined);
  if (!response?.ok || !response.body)
    throw new FinolaError(`${ASSETS.files[key].name} could not be loaded: check the connection and reload the page.`);
  const bytes = new Uint8Array(ASSETS.files[key].bytes);
  let position = 0;
  const reader = response.body.getReader();
  for (let { done, value } = await reader.read(); !done && value; { done, value } = await reader.read()) {
    if (position + value.length > bytes.length) break;
    bytes.set(value, position);
    position += value.length;
    advance(value.length);
  }
  if (position !== bytes.length)
    throw new FinolaError(`${ASSETS.files[key].name} was loaded incompletely: reload the page.`);
  // A full disk or private browsing only means that it is loaded again next time.
  await cache?.put(url, new Response(bytes)).catch(() => undefined);
  return bytes.buffer;
}

/** The cache without files of earlier versions; undefined where there is none, as on plain HTTP. */
async function openCache(): Promise<Cache | undefined> {
  try {
    const cache = await caches.open(CACHE);
    const current = new Set(Object.values(ASSETS.files).map(({ name }) => new URL(name, FOLDER).href));
    for (const { url } of await cache.keys()) if (url.startsWith(FOLDER.href) && !current.has(url)) await cache.delete(url);
    return cache;
  } catch {
    return undefined;
  }
}
