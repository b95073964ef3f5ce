// The user's own image: scaled down if it is large, with a thumbnail and a note on how the network crops it.

export interface Upload {
  name: string;
  /** The file to send. */
  content: Blob;
  /** A URL of the image that is valid only on this page. */
  thumbnail: string;
  /** How it is cropped and scaled, as text. */
  note: string;
}

/** The longest side to send, and the file size above which an image is always scaled down. */
export const LONGEST = 2048;
const LARGE = 4 * 2 ** 20;

/** The size to send an image in: unchanged, or with its longest side limited. */
export function sentSize(width: number, height: number, bytes: number): [number, number] {
  const longest = Math.max(width, height);
  if (longest <= LONGEST && bytes <= LARGE) return [width, height];
  const factor = Math.min(1, LONGEST / longest);
  return [Math.max(1, Math.round(width * factor)), Math.max(1, Math.round(height * factor))];
}

/** What the network sees of an image: the center crop with the network's aspect ratio, scaled to its input size. */
export function cropNote(width: number, height: number, shape: readonly [number, number, number] | null): string {
  const whole = `${width.toLocaleString("en")} × ${height.toLocaleString("en")} pixels`;
  if (!shape) return whole;
  const [, tall, wide] = shape;
  const scale = Math.min(width / wide, height / tall);
  const [w, h] = [Math.round(wide * scale), Math.round(tall * scale)];
  const lost = [w < width ? "left and right" : "", h < height ? "top and bottom" : ""].filter(Boolean).join(", ");
  const cut = lost ? `the middle ${w.toLocaleString("en")} × ${h.toLocaleString("en")} of ${whole}, without its ${lost}` : `all of its ${whole}`;
  return `The network sees ${cut}, ${w === wide && h === tall ? "as they are" : `scaled to ${wide} × ${tall}`}.`;
}

/** A file ready to be sent. A file that the browser cannot read is sent unchanged: the server explains the problem. */
export async function prepare(file: File, shape: readonly [number, number, number] | null): Promise<Upload> {
  const plain = { name: file.name || "pasted image", content: file as Blob, thumbnail: "", note: "" };
  let picture: ImageBitmap;
  try {
    picture = await createImageBitmap(file);
  } catch {
    return plain;
  }
  const note = cropNote(picture.width, picture.height, shape);
  const [width, height] = sentSize(picture.width, picture.height, file.size);
  const same = width === picture.width && height === picture.height && file.size <= LARGE;
  const content = same ? file : await drawn(picture, width, height, "image/jpeg", 0.95);
  const small = 112 / Math.min(picture.width, picture.height);
  const thumbnail = await drawn(picture, Math.max(1, Math.round(picture.width * Math.min(1, small))), Math.max(1, Math.round(picture.height * Math.min(1, small))), "image/png");
  picture.close();
  return { ...plain, content, thumbnail: URL.createObjectURL(thumbnail), note: note + (same ? "" : ` It was scaled down to ${width} × ${height} before it was sent.`) };
}

function drawn(picture: ImageBitmap, width: number, height: number, type: string, quality?: number): Promise<Blob> {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = "#ffffff"; // the server also shows transparent pixels as white
  pen.fillRect(0, 0, width, height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture, 0, 0, width, height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The image could not be scaled down."))), type, quality));
}
