/** Reader of safetensors files: a JSON header and raw little-endian numbers. */
type Numbers = Float32Array | Uint8Array | Int16Array | Uint16Array | BigInt64Array;

export interface Tensor {
  shape: number[];
  data: Numbers; // half precision as its 16 bits
}

const TYPES = {
  F32: Float32Array,
  F16: Uint16Array,
  I64: BigInt64Array,
  I16: Int16Array,
  U8: Uint8Array,
} as const;

export class Tensors {
  private readonly header: Record<string, { dtype: keyof typeof TYPES; shape: number[]; data_offsets: [number, number] }>;
  private readonly start: number;

  constructor(private readonly file: ArrayBuffer) {
    const length = Number(new DataView(file).getBigUint64(0, true));
    this.header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
    this.start = 8 + length;
  }

  get(name: string): Tensor {
    const entry = this.header[name];
    if (!entry) throw new Error(`The model has no tensor ${name}.`);
    const [begin, end] = entry.data_offsets;
    // A copy, because a typed array must begin at a multiple of its element's size.
    return { shape: entry.shape, data: new TYPES[entry.dtype](this.file.slice(this.start + begin, this.start + end)) };
  }
}

const HALF = new Float32Array(65536);

/** Single precision of numbers in half precision. */
export function fromHalf(bits: Uint16Array, out = new Float32Array(bits.length)): Float32Array {
  if (HALF[0x3c00] === 0) for (let code = 0; code < 65536; code++) HALF[code] = halfToNumber(code);
  for (let index = 0; index < bits.length; index++) out[index] = HALF[bits[index]!]!;
  return out;
}

function halfToNumber(code: number): number {
  const sign = code & 0x8000 ? -1 : 1;
  const exponent = (code >> 10) & 31;
  const fraction = code & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}
