/** Command line around the page's reader and writer, for tests: node format.mjs read|write|rans TABLES < INPUT > OUTPUT */
import { readFileSync, writeSync } from "node:fs";
import { readContainer, writeContainer } from "../../web/src/container";
import { contextTables, readPayload, writePayload } from "../../web/src/payload";
import { Decoder, Encoder, Table } from "../../web/src/rans";
import { Tensors } from "../../web/src/safetensors";

const SIDE = 32;
const [command, path] = process.argv.slice(2);
const input = readFileSync(0);

function out(value: unknown): void {
  const list = (_: string, part: unknown) => (ArrayBuffer.isView(part) ? Array.from(part as Uint8Array) : part);
  const text = Buffer.from(JSON.stringify(value, list));
  for (let done = 0; done < text.length; ) done += writeSync(1, text, done);
}

function tables() {
  return contextTables(new Tensors(new Uint8Array(readFileSync(path!)).buffer));
}

try {
  if (command === "read") {
    const { payload, ...header } = await readContainer(new Uint8Array(input));
    const grid = [Math.ceil(header.height / SIDE), Math.ceil(header.width / SIDE)] as const;
    out({ header, tiles: header.mode === 2 ? readPayload(payload, ...grid, tables()) : undefined });
  } else if (command === "write") {
    const { header, tiles } = JSON.parse(input.toString());
    const grid = [Math.ceil(header.height / SIDE), Math.ceil(header.width / SIDE)] as const;
    out(writeContainer({ ...header, payload: writePayload(tiles, ...grid, tables()) }));
  } else {
    // Numbers by one table, then bits, there and back.
    const { frequencies, numbers, bits } = JSON.parse(input.toString());
    const table = new Table(frequencies);
    const encoder = new Encoder();
    for (const number of numbers) encoder.signed(table, number);
    for (const [count, value] of bits) encoder.bits(count, value);
    const stream = encoder.finish();
    const decoder = new Decoder(stream);
    const back = { numbers: numbers.map(() => decoder.signed(table)), bits: bits.map(([count]: [number]) => [count, decoder.bits(count)]) };
    decoder.finish();
    out({ stream, ...back });
  }
} catch (error) {
  out({ error: (error as Error).message, kind: (error as Error).constructor.name });
}
