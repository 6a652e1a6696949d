/** Deblocking filter on 8-bit RGB (docs/format.md): reduces the steps at tile borders of a decoded photo, in place. */
const REACH = 8; // pixels on each side over which a step is spread
const SCALE = 8; // of elastic models
const TOLERANCE = 1.1;
const MAX_LIMIT = 64;
const NORMAL_MEDIAN = 0.6745; // median of |x| of a standard normal distribution

/** `pixels` is (height, width, 4), of which the fourth channel is ignored. */
export function deblock(pixels: Uint8ClampedArray, width: number, height: number, tile: number): void {
  along(pixels, width, height, 4, 4 * width, tile);
  along(pixels, height, width, 4 * width, 4, tile);
}

/** Filter the borders between columns, `length` pixels that are `stride` bytes apart, in `lines` lines. */
function along(pixels: Uint8ClampedArray, length: number, lines: number, stride: number, lineStride: number, tile: number): void {
  const borders = multiples(tile, length - 1, tile);
  const step = (at: number): number => {
    const [before, last, first, after] = [pixels[at - 2 * stride]!, pixels[at - stride]!, pixels[at]!, pixels[at + stride]!];
    return first - last - (last - before + after - first) / 2;
  };
  const median = (columns: number[]): number => {
    const steps = new Float32Array(3 * lines * columns.length);
    let count = 0;
    for (let line = 0; line < lines; line++)
      for (const column of columns)
        for (let channel = 0; channel < 3; channel++) steps[count++] = Math.abs(step(line * lineStride + column * stride + channel));
    return steps.length ? steps.sort()[(steps.length - 1) >> 1]! : 0; // the lower one of two
  };
  const excess = median(borders) ** 2 - (TOLERANCE * median(multiples(tile >> 1, length - 1, tile))) ** 2;
  if (excess <= 0) return;
  const limit = Math.min((SCALE * Math.sqrt(excess)) / NORMAL_MEDIAN, MAX_LIMIT);
  for (const border of borders) {
    const reach = Math.min(REACH, tile >> 1, length - border);
    for (let line = 0; line < lines; line++) {
      for (let channel = 0; channel < 3; channel++) {
        const at = line * lineStride + border * stride + channel;
        const found = step(at);
        const removed = found * Math.exp(-((found / limit) ** 2));
        for (let near = 1; near <= reach; near++) {
          const share = (removed * near) / reach / 2;
          const [left, right] = [at - (reach - near + 1) * stride, at + (reach - near) * stride];
          pixels[left] = pixels[left]! + share; // clamped and rounded
          pixels[right] = pixels[right]! - share;
        }
      }
    }
  }
}

function multiples(first: number, end: number, step: number): number[] {
  const found = [];
  for (let value = first; value < end; value += step) found.push(value);
  return found;
}
