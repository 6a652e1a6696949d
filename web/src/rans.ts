/** Integer entropy coder of `.finola` files (docs/format.md, "Entropy coding: rANS"). */
import { FormatError } from "./errors";

const PRECISION = 15; // frequencies of a table sum to 2¹⁵
const TOTAL = 1 << PRECISION;
const LOW = 1 << 16; // the state lies in [2¹⁶, 2³²)
const LARGEST_EXPONENT = 24;

/** Frequencies of n symbols; `starts` has n + 1 entries. The last symbol may be the escape of signed numbers. */
export class Table {
  readonly starts: Uint16Array;

  constructor(frequencies: ArrayLike<number>) {
    this.starts = new Uint16Array(frequencies.length + 1);
    let sum = 0;
    for (let symbol = 0; symbol < frequencies.length; symbol++) {
      const frequency = frequencies[symbol]!;
      if (frequency < 1) throw new Error(`The frequency of symbol ${symbol} is ${frequency}.`);
      this.starts[symbol] = sum;
      sum += frequency;
    }
    if (sum !== TOTAL) throw new Error(`The frequencies sum to ${sum}, not ${TOTAL}.`);
    this.starts[frequencies.length] = TOTAL;
  }

  get size(): number {
    return this.starts.length - 1;
  }
}

/** Codes one number after the other. `Encoder` returns the number it is given, `Decoder` ignores it and reads one, so
 * that one description of the payload serves both. */
export interface Coder {
  symbol(table: Table, value: number): number;
  bits(count: number, value: number): number;
  signed(table: Table, value: number): number;
}

export class Decoder implements Coder {
  private state: number;
  private position = 4;
  private readonly words: DataView;

  constructor(stream: Uint8Array) {
    if (stream.length < 4 || stream.length % 2) throw new FormatError(`its payload has ${stream.length} bytes`);
    this.words = new DataView(stream.buffer, stream.byteOffset, stream.length);
    this.state = this.words.getUint32(0, true);
    if (this.state < LOW) throw new FormatError(`the first state of its payload is ${this.state}`);
  }

  symbol(table: Table, _value?: number): number {
    const slot = this.state & (TOTAL - 1);
    const { starts } = table;
    let symbol = 0;
    let above = table.size;
    while (above - symbol > 1) {
      const middle = (symbol + above) >> 1;
      if (starts[middle]! <= slot) symbol = middle;
      else above = middle;
    }
    this.advance(starts[symbol]!, starts[symbol + 1]! - starts[symbol]!, slot);
    return symbol;
  }

  bits(count: number, _value?: number): number {
    let value = 0;
    for (let left = count; left > 0; ) {
      const group = Math.min(left, PRECISION);
      const slot = this.state & (TOTAL - 1);
      const symbol = slot >> (PRECISION - group);
      this.advance(symbol << (PRECISION - group), 1 << (PRECISION - group), slot);
      value = value * 2 ** group + symbol;
      left -= group;
    }
    return value;
  }

  signed(table: Table, _value?: number): number {
    const escape = table.size - 1;
    let mapped = this.symbol(table);
    if (mapped === escape) {
      let exponent = 0;
      while (this.bits(1) === 0) {
        if (++exponent > LARGEST_EXPONENT) throw new FormatError("one of its numbers is out of range");
      }
      mapped = escape + 2 ** exponent + this.bits(exponent) - 1;
    }
    return mapped % 2 ? -(mapped + 1) / 2 : mapped / 2;
  }

  /** Check that the stream ends after the last symbol. */
  finish(): void {
    if (this.state !== LOW || this.position !== this.words.byteLength)
      throw new FormatError("its payload does not end after the last tile");
  }

  private advance(start: number, frequency: number, slot: number): void {
    let state = frequency * (this.state >>> PRECISION) + slot - start;
    if (state < LOW) {
      if (this.position >= this.words.byteLength) throw new FormatError("its payload is too short");
      state = state * LOW + this.words.getUint16(this.position, true);
      this.position += 2;
    }
    this.state = state;
  }
}

export class Encoder implements Coder {
  private readonly starts: number[] = [];
  private readonly frequencies: number[] = [];

  symbol(table: Table, value: number): number {
    this.push(table.starts[value]!, table.starts[value + 1]! - table.starts[value]!);
    return value;
  }

  bits(count: number, value: number): number {
    for (let left = count; left > 0; ) {
      const group = Math.min(left, PRECISION);
      left -= group;
      const symbol = Math.floor(value / 2 ** left) % 2 ** group;
      this.push(symbol << (PRECISION - group), 1 << (PRECISION - group));
    }
    return value;
  }

  signed(table: Table, value: number): number {
    const escape = table.size - 1;
    const mapped = value >= 0 ? 2 * value : -2 * value - 1;
    if (mapped < escape) {
      this.symbol(table, mapped);
      return value;
    }
    this.symbol(table, escape);
    const rest = mapped - escape + 1;
    const exponent = 31 - Math.clz32(rest);
    for (let zero = 0; zero < exponent; zero++) this.bits(1, 0);
    this.bits(1, 1);
    this.bits(exponent, rest - 2 ** exponent);
    return value;
  }

  /** The stream of all symbols so far. */
  finish(): Uint8Array<ArrayBuffer> {
    let state = LOW;
    const words: number[] = [];
    for (let index = this.starts.length - 1; index >= 0; index--) {
      const frequency = this.frequencies[index]!;
      if (state >= frequency * 2 ** 17) {
        words.push(state % LOW);
        state = Math.floor(state / LOW);
      }
      state = Math.floor(state / frequency) * TOTAL + (state % frequency) + this.starts[index]!;
    }
    const stream = new Uint8Array(4 + 2 * words.length);
    const view = new DataView(stream.buffer);
    view.setUint32(0, state, true);
    words.reverse().forEach((word, index) => view.setUint16(4 + 2 * index, word, true));
    return stream;
  }

  private push(start: number, frequency: number): void {
    this.starts.push(start);
    this.frequencies.push(frequency);
  }
}
