/** Integers of the tiles of a photo ⇄ payload of version 2 (docs/format.md, "Payload of version 2"). */
import { FormatError } from "./errors";
import { type Coder, Decoder, Encoder, Table } from "./rans";
import type { Tensors } from "./safetensors";

export const COLOURS = 3;
const LENGTHS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384];
const MEAN_CONTEXTS = 8;
const VALUE_CONTEXTS = 8;
const MAX_VALUE = 32767;
const TILES_PER_BYTE = 8000; // bounds the photo that a small file can declare

/** Integers of one tile. `basis` is 0 where there are no values. */
export interface TileIntegers {
  means: number[]; // one per colour
  basis: number;
  values: Int32Array; // as many as its length class stands for
}

/** Static tables of the context model, from `codec.safetensors`. */
export interface ContextTables {
  lengths: number[]; // number of values of each class
  expected: Uint8Array; // (classes, D)
  length: Table[];
  mean: Table[];
  index: Table[];
  value: Table[];
}

export function contextTables(codec: Tensors): ContextTables {
  const expected = codec.get("expected");
  const [classes, full] = expected.shape as [number, number];
  const lengths = [...LENGTHS.filter((length) => length < full), full];
  if (classes !== lengths.length) throw new Error(`expected has ${classes} rows for ${lengths.length} length classes.`);
  const rows = (name: string): Table[] => {
    const { shape, data } = codec.get(name);
    const [count, size] = shape as [number, number];
    return Array.from({ length: count }, (_, row) => new Table(data.subarray(row * size, (row + 1) * size) as Int16Array));
  };
  const tables = { length: rows("length"), mean: rows("mean"), index: rows("index"), value: rows("value") };
  return { lengths, expected: expected.data as Uint8Array, ...tables };
}

export function readPayload(payload: Uint8Array, rows: number, columns: number, tables: ContextTables): TileIntegers[] {
  if (rows * columns > TILES_PER_BYTE * (payload.length + 1))
    throw new FormatError(`it declares ${rows * columns} tiles in ${payload.length} bytes`);
  const decoder = new Decoder(payload);
  const tiles = codeTiles(decoder, rows, columns, tables);
  decoder.finish();
  return tiles;
}

export function writePayload(tiles: TileIntegers[], rows: number, columns: number, tables: ContextTables): Uint8Array {
  const encoder = new Encoder();
  codeTiles(encoder, rows, columns, tables, tiles);
  return encoder.finish();
}

/** Code the tiles row by row. A decoder ignores `given` and returns what it reads; an encoder returns what it is given. */
function codeTiles(coder: Coder, rows: number, columns: number, tables: ContextTables, given?: TileIntegers[]): TileIntegers[] {
  const { lengths, expected } = tables;
  const full = lengths[lengths.length - 1]!;
  const noBasis = tables.index.length - 1;
  const classes = new Uint8Array(rows * columns);
  const errors = new Float64Array(rows * columns * COLOURS); // of the predicted means
  const tiles: TileIntegers[] = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const tile = row * columns + column;
      const left = column > 0 ? tile - 1 : -1;
      const above = row > 0 ? tile - columns : -1;
      const wanted = given?.[tile];

      const context = ((left < 0 ? 0 : classes[left]!) + (above < 0 ? 0 : classes[above]!) + 1) >> 1;
      const kind = coder.symbol(tables.length[context]!, wanted ? lengths.indexOf(wanted.values.length) : 0);
      if (kind >= lengths.length) throw new FormatError(`the length class of tile ${tile} is ${kind}`);
      classes[tile] = kind;

      const means: number[] = [];
      for (let colour = 0; colour < COLOURS; colour++) {
        const errorOf = (other: number) => (other < 0 ? 0 : Math.abs(errors[other * COLOURS + colour]!));
        const predicted = predictMean(tiles, left, above, columns, colour);
        const spread = Math.min(MEAN_CONTEXTS - 1, bitLength(errorOf(left) + errorOf(above)));
        const error = coder.signed(tables.mean[MEAN_CONTEXTS * colour + spread]!, wanted ? wanted.means[colour]! - predicted : 0);
        errors[tile * COLOURS + colour] = error;
        means.push(predicted + error);
      }

      const values = new Int32Array(lengths[kind]!);
      let basis = 0;
      if (kind > 0) {
        const previous = left < 0 || classes[left] === 0 ? noBasis : tiles[left]!.basis;
        basis = coder.symbol(tables.index[previous]!, wanted ? wanted.basis : 0);
        if (basis >= noBasis) throw new FormatError(`the basis of tile ${tile} is ${basis}`);
        let running = 256; // mean magnitude of the values so far, times 256
        for (let i = 0; i < values.length; i++) {
          const size = Math.min(VALUE_CONTEXTS - 1, Math.max(0, bitLength(running) - 4));
          const table = tables.value[VALUE_CONTEXTS * expected[kind * full + i]! + size]!;
          const value = coder.signed(table, wanted ? wanted.values[i]! : 0);
          if (Math.abs(value) > MAX_VALUE) throw new FormatError(`a value of tile ${tile} is ${value}`);
          values[i] = value;
          running += (256 * Math.abs(value) - running) >> 4;
        }
      }
      tiles.push({ means, basis, values });
    }
  }
  return tiles;
}

/** Median of left, above and left + above − diagonal. */
function predictMean(tiles: TileIntegers[], left: number, above: number, columns: number, colour: number): number {
  if (left < 0 && above < 0) return 0;
  if (above < 0) return tiles[left]!.means[colour]!;
  const a = tiles[above]!.means[colour]!;
  if (left < 0) return a;
  const l = tiles[left]!.means[colour]!;
  const d = tiles[left - columns]!.means[colour]!;
  if (d <= Math.min(l, a)) return Math.max(l, a);
  if (d >= Math.max(l, a)) return Math.min(l, a);
  return l + a - d;
}

function bitLength(value: number): number {
  return 32 - Math.clz32(value);
}
