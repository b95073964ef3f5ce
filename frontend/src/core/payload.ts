// The data of a view: a JSON header and one binary buffer, the same in every host.

export type DType = "uint8" | "int8" | "int16" | "uint16" | "int32" | "float16" | "float32";

export interface ArrayInfo {
  dtype: DType;
  shape: number[];
  offset: number;
  length: number;
  /** Name of a float array over the leading axes: value = stored × scale. */
  scale?: string;
  /** The stored numbers are square roots: value = stored × |stored| × scale. */
  squared?: boolean;
}

export interface Header<Meta = Record<string, unknown>> {
  view: string;
  version: 1;
  meta: Meta;
  arrays: Record<string, ArrayInfo>;
}

type Stored = Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Float32Array;

/** An array of a payload. `data` holds the stored numbers; `row` and `values` multiply them by the scale. */
export interface NumberArray {
  shape: number[];
  data: Stored;
  /** Scale factors over the leading axes; null if the data are stored unscaled. */
  scale: Float32Array | null;
  squared: boolean;
  /** How many entries share one scale factor. */
  block: number;
}

export class Payload<Meta = Record<string, unknown>> {
  readonly view: string;
  readonly meta: Meta;
  private readonly cache = new Map<string, NumberArray>();

  constructor(
    readonly header: Header<Meta>,
    readonly buffer: ArrayBuffer,
  ) {
    if (header.version !== 1) throw new Error(`the payload has version ${header.version}, but this page reads version 1`);
    this.view = header.view;
    this.meta = header.meta;
  }

  /** Whether the array has arrived: a large file shows its first arrays while the rest loads. */
  has(name: string): boolean {
    const info = this.header.arrays[name];
    return info !== undefined && info.offset + info.length <= this.buffer.byteLength;
  }

  array(name: string): NumberArray {
    const known = this.cache.get(name);
    if (known) return known;
    const info = this.header.arrays[name];
    if (!info) throw new Error(`the payload has no array ${name}`);
    const data = typed(this.buffer, info);
    const scale = info.scale === undefined ? null : asFloats(this.array(info.scale));
    const block = scale ? data.length / Math.max(1, scale.length) : data.length;
    const made = { shape: info.shape, data, scale, squared: info.squared === true, block };
    this.cache.set(name, made);
    return made;
  }

  /** All values, as floats. */
  values(name: string): Float32Array {
    return asFloats(this.array(name));
  }
}

function typed(buffer: ArrayBuffer, info: ArrayInfo): Stored {
  const count = info.shape.reduce((a, b) => a * b, 1);
  switch (info.dtype) {
    case "uint8":
      return new Uint8Array(buffer, info.offset, count);
    case "int8":
      return new Int8Array(buffer, info.offset, count);
    case "int16":
      return new Int16Array(buffer, info.offset, count);
    case "uint16":
      return new Uint16Array(buffer, info.offset, count);
    case "int32":
      return new Int32Array(buffer, info.offset, count);
    case "float32":
      return new Float32Array(buffer, info.offset, count);
    case "float16":
      return Float32Array.from(new Uint16Array(buffer, info.offset, count), halfToNumber);
  }
}

function asFloats(array: NumberArray): Float32Array {
  if (!array.scale && array.data instanceof Float32Array) return array.data;
  const out = new Float32Array(array.data.length);
  slice(array, 0, out.length, out);
  return out;
}

/** Entries start … start + count of the flattened array, as values. */
export function slice(
  array: NumberArray,
  start: number,
  count: number,
  out: Float32Array = new Float32Array(count),
): Float32Array {
  const { data, scale, squared, block } = array;
  if (!scale) {
    for (let i = 0; i < count; i++) out[i] = data[start + i];
    return out;
  }
  for (let i = 0; i < count; ) {
    const at = start + i;
    const which = Math.floor(at / block);
    const factor = scale[which];
    const stop = Math.min(count, (which + 1) * block - start);
    if (squared) for (; i < stop; i++) out[i] = data[start + i] * Math.abs(data[start + i]) * factor;
    else for (; i < stop; i++) out[i] = data[start + i] * factor;
  }
  return out;
}

/** IEEE 754 binary16. */
export function halfToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** From a notebook or a file: the header as text, the buffer as any kind of bytes. */
export function decode(header: string, bytes: ArrayBuffer | ArrayBufferView): Payload {
  return new Payload(JSON.parse(header) as Header, aligned(bytes));
}

/** From one binary body: the header's length (4 bytes, little endian), the header, padding to 8, the buffer. */
export function decodeBody(body: ArrayBuffer): Payload {
  const length = new DataView(body).getUint32(0, true);
  const header = new TextDecoder().decode(new Uint8Array(body, 4, length));
  const start = Math.ceil((4 + length) / 8) * 8;
  return new Payload(JSON.parse(header) as Header, body.slice(start));
}

function aligned(bytes: ArrayBuffer | ArrayBufferView): ArrayBuffer {
  if (bytes instanceof ArrayBuffer) return bytes;
  if (bytes.byteOffset % 8 === 0 && bytes.byteLength === bytes.buffer.byteLength) return bytes.buffer as ArrayBuffer;
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
}

/** Base64 of deflated bytes, as a file holds them. */
export async function inflate(base64: string): Promise<ArrayBuffer> {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer().catch(() => Promise.reject(new Error("The data of this page cannot be read: the file is incomplete or damaged.")));
}

function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const base64 = text.trim();
  const known = (Uint8Array as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (known) return known.call(Uint8Array, base64);
  const read = atob(base64);
  const bytes = new Uint8Array(read.length);
  for (let i = 0; i < read.length; i++) bytes[i] = read.charCodeAt(i);
  return bytes;
}

/** Two buffers as one. */
export function joined(first: ArrayBuffer, second: ArrayBuffer): ArrayBuffer {
  const both = new Uint8Array(first.byteLength + second.byteLength);
  both.set(new Uint8Array(first));
  both.set(new Uint8Array(second), first.byteLength);
  return both.buffer;
}
