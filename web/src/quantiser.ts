/** Rate–distortion optimised integers of tiles, with the costs of the entropy coder's tables (docs/codec.md). */
import { COLOURS, type ContextTables, type TileIntegers } from "./payload";
import type { Table } from "./rans";

const LAMBDA = 0.12; // squared error, in units of the squared step, per bit
const CANDIDATES = 3; // bases per tile that are compared with the costs of the tables
const ROUNDING = 0.35; // added before truncation when bases are preselected
const BITS_PER_NONZERO = 5; // approximate cost of a non-zero value when bases are preselected
const REACH = 24; // largest magnitude with a tabulated cost
const CONTEXTS = 8;

export function stepSize(step: number): number {
  return 2 ** ((step - 128) / 16);
}

/** Quantiser step of a quality from 1 to 100, as in `finola compress`. */
export function qualityStep(quality: number): number {
  return Math.round(144 - (80 * (quality - 1)) / 99);
}

export class Quantiser {
  private readonly magnitudeCosts: Float64Array; // (expected contexts, REACH + 1), times λ
  private readonly lengthCosts: number[]; // of each class and a basis, less those of class 0, times λ

  constructor(private readonly tables: ContextTables) {
    this.magnitudeCosts = magnitudeCosts(tables.value);
    const kinds = tables.lengths.map((_, kind) => mean(tables.length.map((table) => bits(table, kind))));
    const basis = mean(tables.index.map((table) => mean(range(tables.index.length - 1).map((g) => bits(table, g)))));
    this.lengthCosts = kinds.map((cost) => LAMBDA * (cost - kinds[0]! + basis));
  }

  /** Integers of one tile. `rotated` (bases, D) holds its components in every basis without its means, in steps. */
  tile(rotated: Float32Array, means: number[]): TileIntegers {
    const depth = this.tables.lengths.at(-1)!;
    let best = Infinity;
    let chosen: TileIntegers = { means, basis: 0, values: new Int32Array(0) };
    for (const basis of this.cheapest(rotated, depth)) {
      const x = rotated.subarray(basis * depth, (basis + 1) * depth);
      const found = this.lengths(x);
      if (found.cost >= best) continue;
      best = found.cost;
      chosen = { means, basis: found.kind ? basis : 0, values: this.values(x, found.kind) };
    }
    return chosen;
  }

  /** The bases of least approximate cost. */
  private cheapest(rotated: Float32Array, depth: number): number[] {
    const costs: number[] = [];
    for (let start = 0; start < rotated.length; start += depth) {
      let [error, rate] = [0, 0];
      for (let i = start; i < start + depth; i++) {
        const magnitude = Math.abs(rotated[i]!);
        const level = Math.floor(magnitude + ROUNDING);
        error += (magnitude - level) ** 2;
        if (level > 0) rate += BITS_PER_NONZERO + 2 * Math.log2(level);
      }
      costs.push(error + LAMBDA * rate);
    }
    return range(costs.length).sort((a, b) => costs[a]! - costs[b]!).slice(0, CANDIDATES);
  }

  /** Least cost of the components of a tile, and the length class that reaches it. */
  private lengths(x: Float32Array): { cost: number; kind: number } {
    const { lengths, expected } = this.tables;
    const depth = x.length;
    let tail = 0; // error if all components from the length on are zero
    const tails = new Float64Array(depth + 1);
    for (let i = depth - 1; i >= 0; i--) tails[i] = tail += x[i]! ** 2;
    let found = { cost: tails[0]!, kind: 0 };
    let largest = 0;
    for (let kind = 1; kind < lengths.length; kind++) {
      const size = lengths[kind]!;
      for (let i = lengths[kind - 1]!; i < size; i++) largest = Math.max(largest, Math.abs(x[i]!));
      if (largest <= 0.5) continue;
      let cost = tails[size]! + this.lengthCosts[kind]!;
      for (let i = 0; i < size && cost < found.cost; i++) cost += this.choose(Math.abs(x[i]!), expected[kind * depth + i]!);
      if (cost < found.cost) found = { cost, kind };
    }
    return found;
  }

  private values(x: Float32Array, kind: number): Int32Array {
    const { lengths, expected } = this.tables;
    const values = new Int32Array(lengths[kind]!);
    for (let i = 0; i < values.length; i++) {
      this.choose(Math.abs(x[i]!), expected[kind * x.length + i]!);
      values[i] = Math.sign(x[i]!) * this.level;
    }
    return values;
  }

  private level = 0; // chosen by the last call of `choose`

  /** Cost of quantising a magnitude to the nearest integer, the next smaller one, or zero, whichever costs least. */
  private choose(magnitude: number, expected: number): number {
    const row = expected * (REACH + 1);
    const nearest = Math.round(magnitude);
    let best = magnitude * magnitude + this.magnitudeCosts[row]!;
    this.level = 0;
    for (let level = Math.max(1, nearest - 1); level <= nearest; level++) {
      const cost = (magnitude - level) ** 2 + this.magnitudeCosts[row + Math.min(level, REACH)]!;
      if (cost < best) [best, this.level] = [cost, level];
    }
    return best;
  }
}

/** Integers of the three means and what they leave of the coordinates p of a tile, in place, both in steps. */
export function removeMeans(p: Float32Array, firsts: number[], size: number): number[] {
  for (let i = 0; i < p.length; i++) p[i]! /= size;
  return range(COLOURS).map((colour) => {
    const integer = Math.round(p[firsts[colour]!]!);
    p[firsts[colour]!]! -= integer;
    return integer;
  });
}

function bits(table: Table, symbol: number): number {
  return 15 - Math.log2(table.starts[symbol + 1]! - table.starts[symbol]!);
}

/** Bits of the magnitudes by expected magnitude, averaged over both signs and the contexts of the running mean. */
function magnitudeCosts(tables: Table[]): Float64Array {
  const costs = new Float64Array((tables.length / CONTEXTS) * (REACH + 1));
  for (let expected = 0; expected < tables.length / CONTEXTS; expected++) {
    const group = tables.slice(expected * CONTEXTS, (expected + 1) * CONTEXTS);
    const weights = group.map((table) => 2 ** -bits(table, 0)); // contexts in which zero is likely are more frequent
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    for (let level = 0; level <= REACH; level++) {
      const both = group.map((table) => (bits(table, 2 * level) + bits(table, Math.max(0, 2 * level - 1))) / 2);
      const cost = both.reduce((sum, each, index) => sum + each * weights[index]!, 0) / total;
      costs[expected * (REACH + 1) + level] = LAMBDA * cost;
    }
  }
  return costs;
}

function mean(numbers: number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index);
}
