/** Messages between the page and its worker. A job is superseded by every later one. */
import type { Photo } from "./codec";
import type { TileIntegers } from "./payload";

export type Growth = "latents" | "propagation";

export type Request =
  | { kind: "photo"; job: number; photo: Photo; quality: number }
  | { kind: "quality"; job: number; quality: number }
  | { kind: "file"; job: number; file: Uint8Array }
  | { kind: "frame"; job: number; growth: Growth; value: number }
  | { kind: "integers"; job: number };

export type Reply =
  | { kind: "loading"; loaded: number; total: number }
  | { kind: "ready"; model: string; hash: string }
  | { kind: "coded"; job: number; file: Uint8Array<ArrayBuffer>; summary: Summary }
  | { kind: "picture"; job: number; photo: Photo; final: boolean; psnr: number | undefined; icc: Uint8Array | undefined }
  | { kind: "frame"; job: number; photo: Photo }
  | { kind: "integers"; job: number; integers: Integers }
  | { kind: "error"; job: number; message: string };

export interface Summary {
  width: number;
  height: number;
  tiles: number;
  latents: number; // values of all tiles
  bases: number; // number of different bases
  lengths: number[]; // numbers of latents per tile at which the picture grows: 0, 1, 2 … the largest
  steps: number; // of the recurrence
}

export interface Integers {
  width: number;
  height: number;
  step: number;
  grey: boolean;
  tiles: TileIntegers[];
}
