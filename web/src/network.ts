/** The exported graphs, run by onnxruntime-web. */
import * as ort from "onnxruntime-web/wasm";

export interface Graphs {
  wasm: ArrayBuffer;
  correction: ArrayBuffer; // the network on pixels; its weights are in the model's safetensors
  product: ArrayBuffer; // a batched matrix product
}

/** Correct joined tiles (3, height, width). */
export type Corrector = (image: Float32Array<ArrayBuffer>, height: number, width: number) => Promise<Float32Array<ArrayBuffer>>;

export class Network {
  private constructor(
    private readonly correction: ort.InferenceSession,
    private readonly matrices: ort.InferenceSession,
  ) {}

  static async create(graphs: Graphs, model: ArrayBuffer): Promise<Network> {
    ort.env.wasm.wasmBinary = graphs.wasm;
    ort.env.wasm.numThreads = 1; // threads need headers that many static hosts do not send
    const externalData = [{ path: "model.safetensors", data: new Uint8Array(model) }];
    const correction = await ort.InferenceSession.create(new Uint8Array(graphs.correction), { externalData });
    return new Network(correction, await ort.InferenceSession.create(new Uint8Array(graphs.product)));
  }

  /** a (rows, inner) times every matrix of b (batch, inner, columns): (batch, rows, columns). */
  async product(a: Float32Array, b: Float32Array, inner: number, columns: number): Promise<Float32Array> {
    const left = new ort.Tensor("float32", a, [1, a.length / inner, inner]);
    const right = new ort.Tensor("float32", b, [b.length / (inner * columns), inner, columns]);
    return numbers(await this.matrices.run({ a: left, b: right }));
  }

  readonly correct: Corrector = async (image, height, width) =>
    numbers(await this.correction.run({ images: new ort.Tensor("float32", image, [1, 3, height, width]) }));
}

function numbers(results: ort.InferenceSession.ReturnType): Float32Array<ArrayBuffer> {
  return Object.values(results)[0]!.data as Float32Array<ArrayBuffer>;
}
