/** The `.finola` file around its payload (docs/format.md, "Layout"). */
import { FormatError } from "./errors";

const MAGIC = [0x89, 0x46, 0x4e, 0x4c];
const MAX_SIDE = 2 ** 24;
const MAX_PIXELS = 2 ** 28;
const MAX_STORED = 4 << 20;
const MAX_INFLATED = 16 << 20;
const NAME = /^[a-z0-9.@:/+_-]{1,32}$/;

export interface Container {
  version: number;
  grey: boolean;
  model: string;
  hash: Uint8Array; // four bytes
  width: number;
  height: number;
  step: number;
  mode: number;
  icc?: Uint8Array; // inflated
  exif?: Uint8Array;
  payload: Uint8Array;
}

export async function readContainer(file: Uint8Array): Promise<Container> {
  if (MAGIC.some((byte, index) => file[index] !== byte)) throw new FormatError("it does not begin with the signature of one");
  const version = file[4];
  if (version === undefined) throw new FormatError(`it ends after ${file.length} bytes`);
  if (version !== 1 && version !== 2) throw new FormatError(`its version is ${version}; this page knows versions 1 and 2`);
  if (file.length < 10) throw new FormatError(`it ends after ${file.length} bytes`);
  const end = file.length - 4;
  const stored = new DataView(file.buffer, file.byteOffset + end, 4).getUint32(0, true);
  if (stored !== crc32(file.subarray(0, end))) throw new FormatError("its checksum is wrong, so it is damaged or incomplete");

  const bytes = new Reader(file.subarray(0, end), 5);
  const flags = bytes.byte();
  if (flags > 7) throw new FormatError(`its flags are ${flags}`);
  const model = String.fromCharCode(...bytes.take(bytes.byte()));
  if (!NAME.test(model)) throw new FormatError("the name of its model is invalid");
  const hash = bytes.take(4);
  const width = bytes.varint();
  const height = bytes.varint();
  if (width < 1 || width > MAX_SIDE || height < 1 || height > MAX_SIDE || width * height > MAX_PIXELS)
    throw new FormatError(`its size is ${width} × ${height} pixels`);
  const step = bytes.byte();
  const mode = bytes.byte();
  if (version === 1 ? mode > 1 : mode !== 2) throw new FormatError(`version ${version} has no mode ${mode}`);
  const icc = flags & 2 ? await inflate(bytes.take(bytes.varint(), MAX_STORED)) : undefined;
  const exif = flags & 4 ? await inflate(bytes.take(bytes.varint(), MAX_STORED)) : undefined;
  const read: Container = { version, grey: Boolean(flags & 1), model, hash, width, height, step, mode, payload: bytes.rest() };
  return { ...read, ...(icc && { icc }), ...(exif && { exif }) };
}

/** A file without metadata. */
export function writeContainer(container: Omit<Container, "icc" | "exif">): Uint8Array<ArrayBuffer> {
  const { version, grey, model, hash, width, height, step, mode, payload } = container;
  const name = Array.from(model, (letter) => letter.charCodeAt(0));
  const head = [...MAGIC, version, Number(grey), name.length, ...name, ...hash, ...varint(width), ...varint(height), step, mode];
  const file = new Uint8Array(head.length + payload.length + 4);
  file.set(head);
  file.set(payload, head.length);
  const end = file.length - 4;
  new DataView(file.buffer).setUint32(end, crc32(file.subarray(0, end)), true);
  return file;
}

class Reader {
  constructor(
    private readonly bytes: Uint8Array,
    private position: number,
  ) {}

  byte(): number {
    return this.take(1)[0]!;
  }

  take(count: number, limit = Infinity): Uint8Array {
    if (count > limit || this.position + count > this.bytes.length) throw new FormatError("one of its fields is too long");
    this.position += count;
    return this.bytes.subarray(this.position - count, this.position);
  }

  varint(): number {
    let value = 0;
    for (let place = 0; place < 4; place++) {
      const byte = this.byte();
      value += (byte & 127) * 128 ** place;
      if (byte < 128) {
        if (byte === 0 && place > 0) break;
        return value;
      }
    }
    throw new FormatError("one of its numbers is not written in the shortest form");
  }

  rest(): Uint8Array {
    return this.bytes.subarray(this.position);
  }
}

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
}

async function inflate(block: Uint8Array): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  try {
    const stream = new Blob([block.slice()]).stream().pipeThrough(new DecompressionStream("deflate"));
    const reader = stream.getReader();
    for (let { done, value } = await reader.read(); !done && value; { done, value } = await reader.read()) {
      pieces.push(value);
      length += value.length;
      if (length > MAX_INFLATED) {
        await reader.cancel();
        break;
      }
    }
  } catch {
    throw new FormatError("its metadata is not a zlib stream");
  }
  if (length > MAX_INFLATED) throw new FormatError("its metadata is larger than 16 MiB");
  const whole = new Uint8Array(length);
  let position = 0;
  for (const piece of pieces) {
    whole.set(piece, position);
    position += piece.length;
  }
  return whole;
}

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let rest = byte;
  for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? (rest >>> 1) ^ 0xedb88320 : rest >>> 1;
  return rest;
});

export function crc32(bytes: Uint8Array): number {
  let rest = 0xffffffff;
  for (const byte of bytes) rest = (rest >>> 8) ^ CRC[(rest ^ byte) & 255]!;
  return (rest ^ 0xffffffff) >>> 0;
}
