/** Orthonormal basis images of the tiles of an elastic model (docs/format.md, "Waves").
 *
 * Waves of different colours are orthogonal, so every colour is treated as a grey image: a basis image is a plane of
 * the tile times one colour. All arithmetic is in double precision, because the waves are nearly dependent. */
import type { Tensors } from "./safetensors";

const RIDGE = 1e-8; // relative to the mean diagonal of the Gram matrix

/** Luma, red–blue and green–magenta: orthonormal, one colour per row. */
export const OPPONENT = [
  [1, 1, 1].map((part) => part / Math.sqrt(3)),
  [1, 0, -1].map((part) => part / Math.sqrt(2)),
  [-1, 2, -1].map((part) => part / Math.sqrt(6)),
];

export interface WaveBasis {
  side: number; // of a tile, in pixels
  size: number; // D, the number of coordinates
  /** Per colour: its first coordinate, that of the mean; the number of coordinates; and their planes (count, side²). */
  colours: { first: number; count: number; planes: Float32Array }[];
}

export function waveBasis(model: Tensors, side: number, cell: number): WaveBasis {
  const waves = Array.from(model.get("encoder.basis.waves").data as BigInt64Array, Number);
  const means = Array.from(model.get("encoder.basis.means").data as BigInt64Array, Number);
  const sixteenths = Number((model.get("encoder.basis.period").data as BigInt64Array)[0]);
  const unit = (2 * Math.PI) / ((sixteenths / 16) * side); // radians per pixel of one cycle per period
  const start = Math.floor(side / cell / 2) * cell; // first pixel of the start position of the recurrence
  const colours = [];
  let first = 0;
  for (let colour = 0; colour < 3; colour++) {
    const planes: Float64Array[] = [];
    if (means.includes(colour)) planes.push(new Float64Array(side * side).fill(1));
    for (let wave = 0; wave < waves.length; wave += 3) {
      if (waves[wave + 2] !== colour) continue;
      const [cosine, sine] = [new Float64Array(side * side), new Float64Array(side * side)];
      for (let y = 0; y < side; y++) {
        for (let x = 0; x < side; x++) {
          const phase = unit * (waves[wave]! * (x - start) + waves[wave + 1]! * (y - start));
          cosine[y * side + x] = Math.cos(phase);
          sine[y * side + x] = Math.sin(phase);
        }
      }
      planes.push(cosine, sine);
    }
    colours.push({ first, count: planes.length, gram: gramMatrix(planes), raw: planes });
    first += planes.length;
  }
  const trace = colours.reduce((sum, { gram, count }) => sum + diagonalSum(gram, count), 0);
  const raised = (RIDGE * trace) / first;
  return {
    side,
    size: first,
    colours: colours.map(({ first: at, count, gram, raw }) => ({ first: at, count, planes: orthonormalise(raw, gram, raised) })),
  };
}

/** Lower triangle of the inner products of planes, row by row. */
function gramMatrix(planes: Float64Array[]): Float64Array {
  const count = planes.length;
  const gram = new Float64Array(count * count);
  for (let i = 0; i < count; i++) for (let j = 0; j <= i; j++) gram[i * count + j] = dot(planes[i]!, planes[j]!);
  return gram;
}

function diagonalSum(gram: Float64Array, count: number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += gram[i * count + i]!;
  return sum;
}

function dot(a: Float64Array, b: Float64Array): number {
  let [even, odd] = [0, 0]; // two sums, so that an addition need not wait for the one before it
  for (let k = 0; k + 1 < a.length; k += 2) {
    even += a[k]! * b[k]!;
    odd += a[k + 1]! * b[k + 1]!;
  }
  return even + odd;
}

/** L⁻¹ times the planes, with the Cholesky factor L of the Gram matrix plus `raised` on its diagonal. */
function orthonormalise(planes: Float64Array[], gram: Float64Array, raised: number): Float32Array {
  const count = planes.length;
  const pixels = planes[0]!.length;
  const L = new Float64Array(count * count);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = gram[i * count + j]! + (i === j ? raised : 0);
      for (let k = 0; k < j; k++) sum -= L[i * count + k]! * L[j * count + k]!;
      L[i * count + j] = i === j ? Math.sqrt(sum) : sum / L[j * count + j]!;
    }
    const plane = planes[i]!;
    for (let j = 0; j < i; j++) {
      const factor = L[i * count + j]!;
      const before = planes[j]!;
      for (let pixel = 0; pixel < pixels; pixel++) plane[pixel]! -= factor * before[pixel]!;
    }
    const scale = 1 / L[i * count + i]!;
    for (let pixel = 0; pixel < pixels; pixel++) plane[pixel]! *= scale;
  }
  const out = new Float32Array(count * pixels);
  planes.forEach((plane, index) => out.set(plane, index * pixels));
  return out;
}
