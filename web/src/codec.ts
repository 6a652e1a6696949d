/** Photos ⇄ `.finola` files with the elastic codec of one model. */
import { readContainer, writeContainer } from "./container";
import { deblock } from "./deblock";
import { FinolaError } from "./errors";
import type { Corrector, Network } from "./network";
import { COLOURS, type ContextTables, type TileIntegers, contextTables, readPayload, writePayload } from "./payload";
import { Quantiser, qualityStep, removeMeans, stepSize } from "./quantiser";
import { Tensors, fromHalf } from "./safetensors";
import { OPPONENT, type WaveBasis, waveBasis } from "./waves";

const TILES = 256; // processed together
const CONTEXT = 3; // tiles beyond a strip that the network on pixels needs
const STRIP_PIXELS = 2 ** 21; // bounds the memory of the network: about 64 bytes per pixel
const MAX_PIXELS = 16e6;

/** Pixels (height, width, RGBA) of a photo. */
export interface Photo {
  width: number;
  height: number;
  pixels: Uint8ClampedArray;
}

/** What a file says. */
export interface Coded {
  width: number;
  height: number;
  step: number;
  grey: boolean;
  tiles: TileIntegers[];
  icc?: Uint8Array;
}

export interface ModelFiles {
  id: string; // in the header of files
  name: string; // one-line name
  side: number; // of a tile, in pixels
  cell: number; // side of one position of the recurrence
  hash: Uint8Array; // of the files below and the name
  codec: ArrayBuffer;
  model: ArrayBuffer;
}

export class Codec {
  readonly basis: WaveBasis;
  private readonly tables: ContextTables;
  private readonly quantiser: Quantiser;
  private readonly bases: Float32Array; // (G, D, D)
  private readonly transposed: Float32Array[]; // planes of each colour (side², count), for the analysis

  constructor(private readonly files: ModelFiles) {
    const model = new Tensors(files.model);
    this.tables = contextTables(new Tensors(files.codec));
    this.quantiser = new Quantiser(this.tables);
    this.bases = fromHalf(model.get("encoder.codebook.bases").data as Uint16Array);
    this.basis = waveBasis(model, files.side, files.cell);
    this.transposed = this.basis.colours.map(({ planes, count }) => transpose(planes, count));
  }

  /** Numbers of values that a tile may have. */
  get lengths(): number[] {
    return this.tables.lengths;
  }

  /** Steps of the recurrence until it has reached every position of a tile. */
  get steps(): number {
    const { side, cell } = this.files;
    return 2 * Math.floor(side / cell / 2);
  }

  /** Tiles per column and per row. */
  grid({ width, height }: { width: number; height: number }): [number, number] {
    return [Math.ceil(height / this.files.side), Math.ceil(width / this.files.side)];
  }

  async read(file: Uint8Array): Promise<Coded> {
    const container = await readContainer(file);
    const { id, hash } = this.files;
    if (container.model !== id)
      throw new FinolaError(
        `This file was written with the model ${container.model}, and this page has ${id} only: use finola decompress.`,
      );
    if (hex(container.hash) !== hex(hash))
      throw new FinolaError(
        `This file needs the weights ${hex(container.hash)} of ${id}, and this page has ${hex(hash)}: use the release that wrote it.`,
      );
    const { width, height, step, grey, icc } = container;
    if (container.mode !== 2) throw new FinolaError(`${id} writes mode 2, and this file has mode ${container.mode}: it is invalid.`);
    if (width * height > MAX_PIXELS)
      throw new FinolaError(
        `This photo has ${(width * height / 1e6).toFixed(0)} megapixels and this page decodes at most 16: use finola decompress.`,
      );
    const tiles = readPayload(container.payload, ...this.grid(container), this.tables);
    return { width, height, step, grey, tiles, ...(icc && { icc }) };
  }

  write(coded: Coded): Uint8Array<ArrayBuffer> {
    const { width, height, step, grey, tiles } = coded;
    const payload = writePayload(tiles, ...this.grid(coded), this.tables);
    return writeContainer({ version: 2, mode: 2, model: this.files.id, hash: this.files.hash, width, height, step, grey, payload });
  }

  /** Coordinates p (T, D) of the tiles of a photo, whose edges are replicated. */
  async analyse(photo: Photo, network: Network): Promise<Float32Array> {
    const { side, size, colours } = this.basis;
    const [rows, columns] = this.grid(photo);
    const p = new Float32Array(rows * columns * size);
    const area = side * side;
    for (let first = 0; first < rows * columns; first += TILES) {
      const count = Math.min(TILES, rows * columns - first);
      const planes = this.opponentTiles(photo, first, count, columns);
      for (const [colour, { first: at, count: width }] of colours.entries()) {
        const part = await network.product(planes[colour]!, this.transposed[colour]!, area, width);
        for (let tile = 0; tile < count; tile++) p.set(part.subarray(tile * width, (tile + 1) * width), (first + tile) * size + at);
      }
    }
    return p;
  }

  /** Quantise coordinates (T, D) with the step of a quality. */
  async quantise(p: Float32Array, photo: Photo, quality: number, network: Network): Promise<Coded> {
    const { size, colours } = this.basis;
    const step = qualityStep(quality);
    const firsts = colours.map(({ first }) => first);
    const tiles: TileIntegers[] = [];
    for (let start = 0; start < p.length; start += TILES * size) {
      const part = p.slice(start, start + TILES * size);
      const count = part.length / size;
      const means = [];
      for (let tile = 0; tile < count; tile++)
        means.push(removeMeans(part.subarray(tile * size, (tile + 1) * size), firsts, stepSize(step)));
      const rotated = await network.product(part, this.bases, size, size); // (G, count, D)
      const own = new Float32Array((rotated.length / count) | 0);
      for (let tile = 0; tile < count; tile++) {
        for (let basis = 0; basis * size < own.length; basis++)
          own.set(rotated.subarray((basis * count + tile) * size, (basis * count + tile + 1) * size), basis * size);
        tiles.push(this.quantiser.tile(own, means[tile]!));
      }
    }
    return { width: photo.width, height: photo.height, step, grey: isGrey(photo), tiles };
  }

  /** Joined tiles (3, rows · side, columns · side) of a file before the network on pixels, with the first `limit`
   * values of each tile. */
  async synthesise(coded: Coded, network: Network, limit = Infinity): Promise<Float32Array> {
    const { side, size, colours } = this.basis;
    const [rows, columns] = this.grid(coded);
    const image = new Float32Array(3 * rows * columns * side * side);
    for (let first = 0; first < coded.tiles.length; first += TILES) {
      const tiles = coded.tiles.slice(first, first + TILES);
      const p = this.coordinates(tiles, coded.step, limit);
      for (const [colour, { first: at, count, planes }] of colours.entries()) {
        const own = new Float32Array(tiles.length * count);
        for (let tile = 0; tile < tiles.length; tile++)
          own.set(p.subarray(tile * size + at, tile * size + at + count), tile * count);
        const drawn = await network.product(own, planes, count, side * side);
        this.addColour(image, drawn, colour, first, rows, columns);
      }
    }
    return image;
  }

  /** Correct joined tiles of a file by the network on pixels, in strips of bounded size, one per corrector at a time. */
  async correct(linear: Float32Array, coded: Coded, correctors: Corrector[]): Promise<Float32Array> {
    const { side } = this.basis;
    const [rows, columns] = this.grid(coded);
    const width = columns * side;
    const height = rows * side;
    const bounded = Math.max(1, Math.floor(STRIP_PIXELS / (width * side)) - 2 * CONTEXT);
    const perStrip = Math.min(bounded, Math.ceil(rows / correctors.length));
    const out = new Float32Array(linear.length);
    let next = 0;
    const work = async (correct: Corrector): Promise<void> => {
      while (next < rows) {
        const top = next;
        const bottom = (next = Math.min(rows, top + perStrip));
        const [from, to] = [Math.max(0, top - CONTEXT) * side, Math.min(rows, bottom + CONTEXT) * side];
        const strip = new Float32Array(3 * (to - from) * width);
        for (let c = 0; c < 3; c++)
          strip.set(linear.subarray((c * height + from) * width, (c * height + to) * width), c * (to - from) * width);
        const corrected = await correct(strip, to - from, width);
        for (let c = 0; c < 3; c++) {
          const start = c * (to - from) + top * side - from;
          out.set(corrected.subarray(start * width, (start + (bottom - top) * side) * width), (c * height + top * side) * width);
        }
      }
    };
    // Helpers first: the corrector of this worker blocks it.
    await Promise.all([...correctors].reverse().map(work));
    return out;
  }

  /** 8-bit pixels of joined tiles, cut to the size of the photo; with the deblocking filter for a complete photo. */
  draw(image: Float32Array, coded: Coded, filter: boolean): Photo {
    const [rows, columns] = this.grid(coded);
    const across = columns * this.basis.side;
    const plane = rows * this.basis.side * across;
    const { width, height } = coded;
    const pixels = new Uint8ClampedArray(4 * width * height).fill(255);
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++)
        for (let c = 0; c < 3; c++) pixels[4 * (y * width + x) + c] = 255 * image[c * plane + y * across + x]!; // clamped and rounded
    if (filter) deblock(pixels, width, height, this.basis.side);
    return { width, height, pixels };
  }

  /** Replace the positions that the recurrence has not reached after `steps` steps from the centre of their tile by grey. */
  hideBeyond({ pixels, width }: Photo, steps: number): void {
    const { side, cell } = this.files;
    const start = Math.floor(side / cell / 2);
    const distance = (pixel: number) => Math.abs(Math.floor((pixel % side) / cell) - start);
    for (let at = 0; at < pixels.length; at += 4) {
      const x = (at / 4) % width;
      if (distance(x) + distance((at / 4 - x) / width) > steps) pixels.fill(128, at, at + 3);
    }
  }

  /** p = Δ (U_g v + m) of tiles: (T, D). */
  private coordinates(tiles: TileIntegers[], step: number, limit: number): Float32Array {
    const { size, colours } = this.basis;
    const delta = stepSize(step);
    const p = new Float32Array(tiles.length * size);
    tiles.forEach(({ means, basis, values }, tile) => {
      const count = Math.min(values.length, limit);
      for (let d = 0; d < size; d++) {
        const row = (basis * size + d) * size;
        let sum = 0;
        for (let k = 0; k < count; k++) sum += this.bases[row + k]! * values[k]!;
        p[tile * size + d] = delta * sum;
      }
      for (let colour = 0; colour < COLOURS; colour++) p[tile * size + colours[colour]!.first]! += delta * means[colour]!;
    });
    return p;
  }

  /** The three colours of tiles, each (count, side²), as differences from mid-grey. */
  private opponentTiles(photo: Photo, first: number, count: number, columns: number): Float32Array[] {
    const { side } = this.basis;
    const planes = OPPONENT.map(() => new Float32Array(count * side * side));
    for (let tile = 0; tile < count; tile++) {
      const top = Math.floor((first + tile) / columns) * side;
      const left = ((first + tile) % columns) * side;
      for (let y = 0; y < side; y++) {
        const row = Math.min(top + y, photo.height - 1) * photo.width;
        for (let x = 0; x < side; x++) {
          const at = 4 * (row + Math.min(left + x, photo.width - 1));
          const [r, g, b] = [photo.pixels[at]! / 255 - 0.5, photo.pixels[at + 1]! / 255 - 0.5, photo.pixels[at + 2]! / 255 - 0.5];
          const index = (tile * side + y) * side + x;
          OPPONENT.forEach((part, colour) => (planes[colour]![index] = part[0]! * r + part[1]! * g + part[2]! * b));
        }
      }
    }
    return planes;
  }

  /** Add one colour of tiles (T, side²) to joined tiles; the first colour adds mid-grey, too. */
  private addColour(image: Float32Array, drawn: Float32Array, colour: number, first: number, rows: number, columns: number): void {
    const { side } = this.basis;
    const across = columns * side;
    const plane = rows * side * across;
    for (let c = 0; c < 3; c++) {
      const part = OPPONENT[colour]![c]!;
      const grey = colour === 0 ? 0.5 : 0;
      for (let index = 0; index < drawn.length; index += side) {
        const tile = first + Math.floor(index / (side * side));
        const y = Math.floor(tile / columns) * side + ((index / side) % side);
        const at = c * plane + y * across + (tile % columns) * side;
        for (let x = 0; x < side; x++) image[at + x]! += part * drawn[index + x]! + grey;
      }
    }
  }
}

export function psnr(a: Photo, b: Photo): number {
  let sum = 0;
  for (let index = 0; index < a.pixels.length; index++) if (index % 4 < 3) sum += (a.pixels[index]! - b.pixels[index]!) ** 2;
  return 10 * Math.log10((255 ** 2 * 3 * a.width * a.height) / sum);
}

function isGrey({ pixels }: Photo): boolean {
  for (let at = 0; at < pixels.length; at += 4)
    if (pixels[at] !== pixels[at + 1] || pixels[at + 1] !== pixels[at + 2]) return false;
  return true;
}

function transpose(matrix: Float32Array, rows: number): Float32Array {
  const columns = matrix.length / rows;
  const out = new Float32Array(matrix.length);
  for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) out[column * rows + row] = matrix[row * columns + column]!;
  return out;
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
